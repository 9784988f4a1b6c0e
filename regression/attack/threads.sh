#!/usr/bin/env bash
# The threads in addition to those that compute, under ThreadSanitizer: refresh workers, the pager of preconditioners, the store on
# disk and that of a device. They know no Kokkos, so that a few files of the tree and their unit tests make a program of their own (a whole build
# under this sanitizer would report OpenMP's own barriers). By hand: threads.sh FOLDER [REPEATS]; ends with 66 on a report.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
repeats=${2:-1}
flags=(-std=c++20 -O1 -g -fsanitize=thread -DFMT_SHARED -I "$tree")
sources=(regression/unit/core/test_worker_pool.cpp regression/unit/core/test_pager.cpp regression/unit/core/test_device_store.cpp
         regression/unit/io/test_block_file.cpp
         regression/unit/io/test_copy_file.cpp
         core/optimizer/refresh/worker_pool.cpp core/memory/pager.cpp core/memory/blocks.cpp core/memory/device_store.cpp
         io/store/block_file.cpp io/store/block_file_run.cpp io/store/chunk_engine.cpp io/store/chunk_engine_pool.cpp
         io/store/chunk_ring_uring.cpp io/store/copy_file.cpp io/store/digest.cpp
         io/store/input_file.cpp io/store/output_file.cpp kernels/base/error.cpp)
objects=()
for source in "${sources[@]}"; do
  objects+=("$folder/${source//\//_}.o")
  "${CXX:-g++}" "${flags[@]}" -c "$tree/$source" -o "${objects[-1]}"
done
"${CXX:-g++}" -fsanitize=thread "${objects[@]}" -o "$folder/threads" -lgtest -lgtest_main -lfmt -lspdlog -lxxhash -luring -lpthread
"$folder/threads" --gtest_repeat="$repeats" --gtest_brief=1
