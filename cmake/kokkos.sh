# Functions for setup.sh: Kokkos from source, for machines where none is installed, and Kokkos Kernels, which the tests of
# what other devices run want (regression/unit/portable).
# Both come with the source package of GenTen (Sandia National Laboratories) on the Python index: Kokkos 4.7.0, Kokkos Kernels 4.4.0. Needs: say, fail, python3 with pip, cmake, ninja, a C++ compiler.
readonly source_package=pygenten
readonly source_version=0.1.5
readonly source_sha256=e620f05c742905e2db705d875f1cac92ef0ed453f9e6734e9beda26cc0f9cce7

# kokkos_source DIR: the unpacked library in DIR/tpls; the download is kept in the user's cache.
kokkos_source() {
  local dir=$1 archive="$cache/$source_package-$source_version.tar.gz"
  [ -f "$dir/.complete" ] && return
  if ! echo "$source_sha256  $archive" | sha256sum --check --status 2>/dev/null; then
    say "downloading Kokkos' sources (17 MB)"
    mkdir -p "$cache"
    rm -f "$archive"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary $source_package \
      --dest "$cache" "$source_package==$source_version" || fail 69 "cannot download $source_package $source_version"
    echo "$source_sha256  $archive" | sha256sum --check --status || fail 65 "$archive: not the expected file; delete it and try again"
  fi
  rm -rf "$dir"
  mkdir -p "$dir"
  tar xzf "$archive" --directory "$dir" --strip-components 1 "$source_package-$source_version/tpls/kokkos" \
    "$source_package-$source_version/tpls/kokkos-kernels"
  touch "$dir/.complete"
}

# patch_for_cuda13 KOKKOS: Kokkos 4.7.0 is older than CUDA 13, which gave two calls of the runtime new parameters and
# dropped the architecture that nvcc_wrapper falls back to. The patched source still builds with CUDA 12.
patch_for_cuda13() {
  local instance="$1/core/src/Cuda/Kokkos_Cuda_Instance.hpp"
  sed -i "s/^default_arch=.*/default_arch=\"sm_$cuda_arch\"/" "$1/bin/nvcc_wrapper"
  nvcc_major_is 13 || return 0
  sed -i 's/cudaGraphAddDependencies(graph, from, to, numDependencies)/cudaGraphAddDependencies(graph, from, to, nullptr, numDependencies)/
    s/cudaMemPrefetchAsync(devPtr, count, dstDevice, m_stream)/cudaMemPrefetchAsync(devPtr, count, prefetch_location(dstDevice), 0, m_stream)/
    s/^  cudaError_t cuda_mem_prefetch_async_wrapper/  static cudaMemLocation prefetch_location(int device) {\n    const bool host = device == cudaCpuDeviceId;\n    return {host ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice, host ? 0 : device};\n  }\n&/' \
    "$instance"
}

nvcc_major_is() { "${nvcc:?}" --version | grep -q "release $1\."; }

# build_kokkos host|cuda LINK: makes LINK lead to a Kokkos that is kept in the user's cache, for all checkouts and runs: one
# for each kind, source, machine, compiler and way of building it. It is built there unless it is there already.
build_kokkos() {
  local kind=$1 link=$2 stamp prefix
  stamp="$source_sha256 $machine_id $(sha256sum <"$root/cmake/kokkos.sh")"
  [ "$kind" = host ] || stamp+=" $cuda_arch $("$nvcc" --version | tail -1) ${NVCC_WRAPPER_DEFAULT_COMPILER:-}"
  prefix="$cache/kokkos-$kind-$(sha256sum <<<"$stamp" | cut -c1-16)"
  # In a cache that cannot be written, as before there was one.
  mkdir -p "$prefix" 2>/dev/null || prefix="$link.own"
  mkdir -p "$prefix" "$(dirname "$link")"
  (
    flock 9  # another checkout may be building it
    [ -f "$prefix/.complete" ] || install_kokkos "$kind" "$prefix"
  ) 9>"$prefix/.lock" || exit
  rm -rf "$link"
  ln -s "$prefix" "$link"
}

# install_kokkos host|cuda PREFIX
install_kokkos() {
  local kind=$1 prefix=$2 work="$2/src"
  kokkos_source "$work"
  local -a common=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_STANDARD=20 -DCMAKE_INSTALL_PREFIX="$prefix"
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16
    "-DCMAKE_PREFIX_PATH=$prefix" -Wno-dev)
  # Without its deprecated code no Kokkos policy makes a heap handle: a training step allocates nothing.
  local -a kokkos=(-DKokkos_ENABLE_SERIAL=ON -DKokkos_ENABLE_OPENMP=ON -DKokkos_ENABLE_DEPRECATED_CODE_4=OFF)
  if [ "$kind" = cuda ]; then
    patch_for_cuda13 "$work/tpls/kokkos"
    kokkos+=(-DKokkos_ENABLE_CUDA=ON "-DKokkos_ARCH_$(kokkos_arch_name)=ON" "-DCMAKE_CXX_COMPILER=$work/tpls/kokkos/bin/nvcc_wrapper")
  fi
  say "building Kokkos ($kind)"
  cmake -S "$work/tpls/kokkos" -B "$work/kokkos" "${common[@]}" "${kokkos[@]}" >"$work/kokkos.log" 2>&1 &&
    show_progress "$work/kokkos.log" cmake --build "$work/kokkos" --target install || log_failure "$work/kokkos.log"
  [ "$kind" = cuda ] || build_kokkos_kernels "$work" "${common[@]}"
  rm -rf "$work"
  touch "$prefix/.complete"
}

# build_kokkos_kernels WORK OPTIONS...: of its headers for dense algebra alone; without kernels compiled in advance that is
# seconds of work. No vendor library, so that it is its own products that are tested.
build_kokkos_kernels() {
  local work=$1
  shift
  say "building Kokkos Kernels"
  cmake -S "$work/tpls/kokkos-kernels" -B "$work/kernels" "$@" -DKokkosKernels_ENABLE_ALL_COMPONENTS=OFF \
    -DKokkosKernels_ENABLE_COMPONENT_BLAS=ON -DKokkosKernels_ADD_DEFAULT_ETI=OFF -DKokkosKernels_ENABLE_TPL_BLAS=OFF \
    -DKokkosKernels_ENABLE_TPL_LAPACK=OFF >"$work/kernels.log" 2>&1 &&
    show_progress "$work/kernels.log" cmake --build "$work/kernels" --target install || log_failure "$work/kernels.log"
}

# Kokkos' name of the CUDA architecture $cuda_arch.
kokkos_arch_name() {
  case $cuda_arch in
    70) echo VOLTA70 ;; 75) echo TURING75 ;; 80) echo AMPERE80 ;; 86) echo AMPERE86 ;; 89) echo ADA89 ;;
    90) echo HOPPER90 ;; 100) echo BLACKWELL100 ;; 120) echo BLACKWELL120 ;;
    *) fail 64 "SESTINA_CUDA_ARCH=$cuda_arch: known are 70, 75, 80, 86, 89, 90, 100, 120" ;;
  esac
}
