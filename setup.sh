#!/usr/bin/env bash
# From a bare Debian machine to a trained model (`run`) or a passed test suite (`test`). `./setup.sh help` tells more.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build="$root/build"
cache="${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/sestina"
cuda_arch=${SESTINA_CUDA_ARCH:-90}
jobs=$(nproc)
started=$SECONDS
export CMAKE_BUILD_PARALLEL_LEVEL=$jobs

tools=(cmake ninja-build g++ pkg-config python3 git)
libraries=(libdnnl-dev libopenblas-openmp-dev liblapacke-dev libhdf5-dev libopenmpi-dev libtomlplusplus-dev
  libcli11-dev nlohmann-json3-dev libfmt-dev libspdlog-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev
  liburing-dev libgtest-dev libbenchmark-dev)
# What some tests want in addition to these, and are skipped without: a Slurm to submit to, nodes out of network namespaces, a second compiler, a browser.
test_tools=(munge slurmctld slurmd slurm-client slurm-wlm-basic-plugins iproute2 shellcheck clang libomp-dev libclang-rt-dev valgrind chromium)

usage() {
  cat <<'END'
./setup.sh run          build, prepare real text, train a small language model on it (minutes), make the report
./setup.sh test         build and run the whole test suite; the last line counts passed, failed and skipped tests
./setup.sh test quick   only whether it works here: the program, some unit tests, a training, a resume, two ranks (minutes)
./setup.sh build [cuda] build the programs only, into build/bin (with cuda: into build/cuda/bin)

As root on Debian each installs the packages it needs; otherwise it prints what is missing. An installed Kokkos
(CMAKE_PREFIX_PATH, Kokkos_ROOT) is used when there is one; else it is built from source, once for all checkouts of a
user (~/.cache/sestina), and build/deps leads there.

SESTINA_TEXT=PATH       text file or folder of .txt, .md and .rst files to train on (default: the Linux kernel's documentation)
SESTINA_CUDA_ARCH=90    compute capability of the CUDA build
SESTINA_TEST_MINUTES=85 a job of the test suite that would end later than this is skipped
SESTINA_PACKAGES=no     do not look for Debian packages: the libraries come from elsewhere (Spack, modules)
END
}

source "$root/cmake/kokkos.sh"
source "$root/cmake/first_run.sh"
source "$root/cmake/test_jobs.sh"

say() { printf '== %02d:%02d  %s\n' $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) "$*"; }
fail() {
  local code=$1
  shift
  echo "setup.sh: $*" >&2
  exit "$code"
}
log_failure() {
  tail -n 60 "$1" >&2
  fail 70 "failed; the whole log is $1"
}

# show_progress LOG COMMAND...: runs the command into the log and says every few seconds how far Ninja is.
show_progress() {
  local log=$1 child shown='' counter last=$SECONDS
  shift
  "$@" >>"$log" 2>&1 &
  child=$!
  while kill -0 $child 2>/dev/null; do
    sleep 0.5
    ((SECONDS - last >= 15)) || continue
    last=$SECONDS
    counter=$(grep -o '^\[[0-9]*/[0-9]*\]' "$log" | tail -n 1) || true
    [ "$counter" = "$shown" ] || say "   $counter"
    shown=$counter
  done
  wait $child
}

# What compiled code depends on in addition to its source: the processor (-march=native) and the compiler.
machine_identity() {
  { grep -m1 '^flags' /proc/cpuinfo || uname -m; c++ --version; } 2>/dev/null | sha256sum | cut -c1-16
}

install_packages() {
  local -a missing=()
  [ "${SESTINA_PACKAGES:-yes}" = no ] && return
  if ! command -v dpkg-query >/dev/null; then
    say "not a Debian system: CMake will name the libraries it does not find"
    return
  fi
  local package
  python3 -m pip --version >/dev/null 2>&1 || tools+=(python3-pip)
  for package in "${tools[@]}" "${libraries[@]}"; do
    case $(dpkg-query --show --showformat '${db:Status-Abbrev}' "$package" 2>/dev/null) in ii*) ;; *) missing+=("$package") ;; esac
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    fail 69 "missing packages: ${missing[*]}
install them with
  sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}"
  fi
  say "installing ${#missing[@]} packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null || fail 69 "apt-get failed"
}

# Never an error: without them tests are skipped. `build` installs them too, because ctest may follow, but only where no
# service manager would start what comes with them as services of the machine (a container).
install_test_tools() {
  local package
  local -a missing=()
  [ "${SESTINA_PACKAGES:-yes}" = no ] && return
  command -v dpkg-query >/dev/null || return 0
  for package in "${test_tools[@]}"; do
    case $(dpkg-query --show --showformat '${db:Status-Abbrev}' "$package" 2>/dev/null) in ii*) ;; *) missing+=("$package") ;; esac
  done
  ((${#missing[@]})) || return 0
  if ((EUID != 0)) || { [ "$1" = build ] && [ -d /run/systemd/system ]; }; then
    say "not installed, so that some tests are skipped: ${missing[*]}"
    return 0
  fi
  say "installing for the tests: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Run level 1: none of them is started as a service.
  { apt-get update -qq && RUNLEVEL=1 apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null; } ||
    say "apt-get failed: some tests are skipped"
}

# installed_kokkos DEVICE: true when CMake finds a Kokkos that is new enough and has that device (OPENMP, CUDA).
installed_kokkos() {
  local probe
  probe=$(mktemp -d)
  cat >"$probe/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
find_package(Kokkos 4.7 REQUIRED)
list(FIND Kokkos_DEVICES "${DEVICE}" has)
list(FIND Kokkos_DEVICES CUDA cuda)
if(has EQUAL -1 OR (DEVICE STREQUAL OPENMP AND NOT cuda EQUAL -1))
  message(FATAL_ERROR "not this one")
endif()
END
  local found=0
  cmake -S "$probe" -B "$probe/build" -DDEVICE="$1" >/dev/null 2>&1 || found=1
  rm -rf "$probe"
  return $found
}

# prepare host|cuda: packages and libraries, then `options`, the CMake options for that build.
prepare() {
  local kind=$1
  install_packages
  machine_id=$(machine_identity)
  export CCACHE_NAMESPACE="sestina-$machine_id"
  # Objects made for another processor would stop with an illegal instruction.
  if [ -f "$build/.machine" ] && [ "$(cat "$build/.machine")" != "$machine_id" ]; then
    say "another processor or compiler than last time: building afresh"
    rm -rf "$build"
  fi
  mkdir -p "$build"
  echo "$machine_id" >"$build/.machine"
  options=(-Wno-dev)
  ! command -v ccache >/dev/null || options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  if [ "$kind" = host ]; then
    if installed_kokkos OPENMP; then
      options+=(-DCMAKE_PREFIX_PATH=)
      return
    fi
    build_kokkos host "$build/deps/host"
    options+=("-DCMAKE_PREFIX_PATH=$build/deps/host${CMAKE_PREFIX_PATH:+;${CMAKE_PREFIX_PATH//:/;}}")
  else
    find_nvcc || fail 69 "no nvcc found (PATH, CUDA_HOME, /usr/local/cuda)"
    if installed_kokkos CUDA; then
      options+=(-DCMAKE_PREFIX_PATH= -DCMAKE_CXX_COMPILER=nvcc_wrapper)
    else
      build_kokkos cuda "$build/deps/cuda"
      options+=("-DCMAKE_PREFIX_PATH=$build/deps/cuda${CMAKE_PREFIX_PATH:+;${CMAKE_PREFIX_PATH//:/;}}"
        "-DCMAKE_CXX_COMPILER=$build/deps/cuda/bin/nvcc_wrapper")
    fi
    cudnn_frontend
  fi
}

# Unpacks Python packages into a folder, if that was not done before; after it come arguments of `pip download`. Fails where
# they cannot be had.
python_packages() {
  local folder=$1 wheel
  shift
  [ ! -f "$folder/.complete" ] || return 0
  rm -rf "$folder"
  mkdir -p "$folder/wheels"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder/wheels" "$@" || return 1
  for wheel in "$folder"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$folder"
  done
  rm -r "$folder/wheels"
  touch "$folder/.complete"
}

# Adds to `options` the headers of cuDNN's front end, where there is cuDNN. They come in a Python package, which is the same
# whatever Python there is here. Where it cannot be had, attention on the device is computed by our own kernels.
cudnn_frontend() {
  local version=1.18.0 folder="$build/deps/cudnn-frontend-1.18.0" machine hash
  machine=$(uname -m)
  case $machine in
    x86_64) hash=382ea063b92cbfd5b442cb75ff8422932d78276aecf139e46713ed1ad3d07af4 ;;
    aarch64) hash=f6d4d0b88d617b233a503c84980b54d840b60b2734497d1a7a071ec5293daec2 ;;
    *) return 0 ;;
  esac
  [ -f "$(dirname "$nvcc")/../include/cudnn.h" ] || [ -f /usr/include/cudnn.h ] || [ -n "${CUDNN_ROOT:-}" ] || return 0
  say "headers of cuDNN's front end $version"
  mkdir -p "$build/deps"
  echo "nvidia-cudnn-frontend==$version --hash=sha256:$hash" >"$folder.wanted"
  if ! python_packages "$folder" --require-hashes --only-binary=:all: --python-version 311 --implementation cp \
    --platform "manylinux_2_28_$machine" -r "$folder.wanted"; then
    say "they cannot be had: attention will be computed by our own kernels"
    return 0
  fi
  options+=("-DCUDNN_FRONTEND_ROOT=$folder")
}

find_nvcc() {
  nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null) || return 1
  export PATH="$PATH:$(dirname "$nvcc")"
}

# compile PRESET DIR TARGETS...: configures and builds; the log is DIR/build.log.
compile() {
  local preset=$1 dir=$2 log="$2/build.log"
  shift 2
  mkdir -p "$dir"
  cmake -S "$root" --preset "$preset" -B "$dir" "${options[@]}" >"$log" 2>&1 &&
    show_progress "$log" cmake --build "$dir" --target "$@"
}

build_programs() {
  local kind=$1 preset=cpu dir="$build"
  [ "$kind" = host ] || preset=cuda dir="$build/cuda"
  prepare "$kind"
  say "building Sestina ($kind)"
  compile "$preset" "$dir" programs || log_failure "$dir/build.log"
  say "ready: $dir/bin/sestina"
}

case ${1:-help} in
  run)
    build_programs host
    first_run
    ;;
  test)
    case ${2:-all} in
      all)
        install_test_tools test
        test_jobs
        ;;
      quick) quick_jobs ;;
      *) fail 64 "test $2: there is quick, or nothing for the whole suite" ;;
    esac
    ;;
  build)
    case ${2:-cpu} in
      cpu)
        install_test_tools build
        build_programs host
        ;;
      cuda) build_programs cuda ;;
      *) fail 64 "build $2: there are cpu and cuda" ;;
    esac
    ;;
  help | -h | --help) usage ;;
  *)
    usage >&2
    fail 64 "no such command: $1"
    ;;
esac
