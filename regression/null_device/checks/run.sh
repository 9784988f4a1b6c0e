#!/usr/bin/env bash
# run.sh FOLDER: the null device finds each of the mistakes of mistakes.cpp, and none where none is made; orders.py too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1 cuda=${CUDA_HOME:-/usr/local/cuda} failed=0
mkdir -p "$out"
g++ -std=c++20 -I"$cuda/include" ${NCCL_INCLUDE:+-I"$NCCL_INCLUDE"} "$here/mistakes.cpp" -o "$out/mistakes" \
  -L"$cuda/lib64" -L"$cuda/lib" -L"$cuda/lib64/stubs" -L"$cuda/lib/stubs" -lcudart -lcublas -lcusolver -lnccl -lcuda
"$here/../build.sh" "$out/device" "$out/mistakes"

program=mistakes
# expect MISTAKE PATTERN: what the report has to say.
expect() {
  LD_LIBRARY_PATH="$out/device" NULL_DEVICE_REPORT="$out/report" "$out/$program" "$1" >"$out/log" 2>&1 || true
  if grep -E '^(problem|leak)' "$out/report" | cut -f1,2 | grep -Eq "^$2"; then
    echo "$1: told"
  else
    echo "$1: expected \"$2\", the report says:" && cat "$out/report" && failed=1
  fi
}
expect changed 'problem.pinned host memory changed'
expect touched 'problem.host code touches device memory'
expect overrun 'problem.cudaMemcpyAsync: 4004 bytes'
expect unordered 'problem.ncclSend is not after the kernels'
expect late 'problem.ncclSend is not after the kernels'
expect early 'problem.cudaMemcpyAsync is not after the kernels'
expect leaked 'leak.device'
expect unmapped 'problem.cudaMemcpyAsync: .* device memory that is not allocated'
expect unused 'problem.cudaMemcpyAsync is not after what used memory'
expect behind 'problem.cuMemAddressFree of addresses with memory'
expect unaligned 'problem.cublasSetWorkspace: memory that is not aligned'
expect lazy 'problem.ncclCommInitRankConfig without CUDA_MODULE_LOADING'
expect kept 'leak.device: memory to be mapped'
expect unasked 'problem.cuMemPrefetchAsync to the host of memory that was not asked for'
expect beyond 'problem.cuMemPrefetchAsync of something else than managed memory'
expect hasty 'problem.cuMemPrefetchAsync to the host is not after what used memory'
expect managed 'leak.managed'
expect unrecorded 'problem.cudaEventElapsedTime of an event that was never recorded'
expect recorded-wait 'problem.cudaStreamSynchronize while a stream is recorded'
expect recorded-memory 'problem.cudaMalloc while a stream is recorded'
expect recorded-copy 'problem.cudaMemcpyAsync from pinned to device while a stream is recorded'
expect recorded-elsewhere 'problem.a launch in another stream while a stream is recorded'
expect recorded-nothing 'problem.cudaGraphLaunch of a graph without kernels'
expect unfinished 'problem.cudaEventElapsedTime of an event that the host has not waited for'
product='problem.cublasGemmEx' batch='problem.cublasGemmStridedBatchedEx' lists='problem.cublasGemmBatchedEx' solver='problem.cusolverDnS'
groups='problem.cublasGemmGroupedBatchedEx'
expect negative "$product: k is below 0"
expect leading "$product: leading dimension of A below its rows"
expect null "$product: A is null"
expect host "$product: A is not in device memory"
expect uneven "$product: A is not aligned to its elements"
expect outside "$product, B: 480 bytes at byte 3960 of 4000"
expect aliased "$product: C lies in B"
expect factor "$product: a factor that is not in host memory"
expect types "$product: types that it does not know together"
expect sums "$product: types that it does not know together"
expect overlap "$batch: results of a batch lie in each other"
expect batch "$batch: count is below 0"
expect listed "$lists: pointers to A that are not in device memory"
expect nowhere "$lists: B is null"
expect within "$lists: C lies in A"
expect meeting "$lists: C lies in C"
expect group-listed "$groups: pointers to A that are not in device memory"
expect group-sizes "$groups: no groups, or arrays of sizes"
expect group-negative "$groups: a size below 0"
expect group-leading "$groups: leading dimension of A below its rows"
expect group-types "$groups: types that it does not know in groups"
expect group-uneven "$groups: A of a product that rounds is not aligned to 16 bytes"
expect group-meeting "$groups: C lies in C"
expect rows "${solver}syevd: leading dimension of A below its rows"
expect values "${solver}syevd: W lies in A"
expect scratch "${solver}syevd: scratch of [0-9]* elements, its query answers"
expect scratchless "${solver}syevd: work is null"
expect info "${solver}syevd: info is null"
expect factor-scratch "${solver}geqrf: scratch of 10 elements"
expect wide "${solver}orgqr: more columns than rows"
expect together-rows "problem.cusolverDnXsyevBatched: leading dimension of A below its rows"
expect together-values "problem.cusolverDnXsyevBatched: W lies in A"
expect together-types "problem.cusolverDnXsyevBatched: values or sums of another type"
expect together-scratch "problem.cusolverDnXsyevBatched: scratch of [0-9]* bytes, its query answers"
# no_mistake: nothing is told of the program without one.
no_mistake() {
  LD_LIBRARY_PATH="$out/device" NULL_DEVICE_REPORT="$out/report" "$out/$program"
  if grep -E '^(problem|leak)' "$out/report"; then failed=1; else echo "none: nothing told"; fi
}
no_mistake
if [ -e "$out/device/libcudnn.so.9" ]; then
  program=attention
  g++ -std=c++20 -I"$cuda/include" "$here/attention.cpp" -o "$out/attention" -L"$cuda/lib64" -L"$cuda/lib" -lcudart -lcudnn
  expect shifted 'problem.cudnn sdpa: tensor 1 is not aligned to 16 bytes'
  expect outside 'problem.cudnn sdpa, tensor 2: [0-9]* bytes at byte'
  expect aliased 'problem.cudnn sdpa: tensor 4 lies in tensor 1'
  expect host 'problem.cudnn sdpa: tensor 3 is not in device memory'
  expect missing 'problem.cudnn sdpa: tensor 3 is not in the pack'
  expect scratchless 'problem.cudnn sdpa_back: workspace is null'
  no_mistake
fi
python3 -B "$here/orders.py" || failed=1
exit $failed
