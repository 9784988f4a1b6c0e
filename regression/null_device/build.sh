#!/usr/bin/env bash
# build.sh FOLDER PROGRAM: builds the null device for PROGRAM (linked to the shared CUDA libraries) into FOLDER.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1 program=$2 cuda=${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$out"
objects=()
for source in "$here"/*.cpp; do
  [[ $source != */cudnn.cpp ]] || g++ -E -I"$cuda/include" -include cudnn.h -x c++ /dev/null >/dev/null 2>&1 || continue
  object="$out/$(basename "$source" .cpp).o"
  g++ -std=c++20 -O1 -g -fPIC -Wall -I"$cuda/include" ${NCCL_INCLUDE:+-I"$NCCL_INCLUDE"} -c "$source" -o "$object"
  objects+=("$object")
done

# What the program wants of CUDA and is not written in the sources: functions that count their calls.
nm -D --undefined-only "$program" | awk '{print $NF}' |
  grep -E '^(__)?cu(da|blas|solver|sparse|[A-Z])|^nccl' | grep -v '^cupti' | sort -u >"$out/wanted"
nm --defined-only "${objects[@]}" | awk '{print $NF}' | sort -u >"$out/written"
{
  echo 'extern "C" int null_device_call(const char*);'
  sed 's/@.*//' "$out/wanted" | sort -u | comm -23 - "$out/written" |
    sed 's/.*/extern "C" int &() { return null_device_call("&"); }/'
} >"$out/stubs.cpp"
# Each library has versions of its symbols.
{
  for node in $(grep -o '@.*' "$out/wanted" | tr -d @ | sort -u); do
    echo "$node { global: $(grep "@$node\$" "$out/wanted" | sed 's/@.*//' | tr '\n' ';') };"
  done
  echo 'libcudnn.so.9 { global: cudnn*; };'
  echo 'NULL_DEVICE { global: nccl*; cu[A-Z]*; kokkosp_*; null_device_call; local: *; };'
} >"$out/versions"
g++ -shared -o "$out/libnull_device.so" "${objects[@]}" -x c++ "$out/stubs.cpp" -x none -fPIC -Wl,--version-script="$out/versions"
for name in $(objdump -p "$program" | awk '/NEEDED/ {print $2}' | grep -E '^lib(cu|nccl)' | grep -v curl); do
  ln -sf libnull_device.so "$out/$name"
done
# Programs load it when they run.
[ ! -f "$out/cudnn.o" ] || ln -sf libnull_device.so "$out/libcudnn.so.9"
echo "$out: $(grep -c . "$out/wanted") functions wanted, $(($(grep -c . "$out/stubs.cpp") - 1)) only counted"
