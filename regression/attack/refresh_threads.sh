#!/usr/bin/env bash
# Asynchronous refreshes under ThreadSanitizer: the ports of matrices, sets of matrices with workers, and pages of their state, as
# training uses them, with kernels and Kokkos. OpenMP has one thread, because the sanitizer does not know its barriers. By hand:
# refresh_threads.sh FOLDER [REPEATS], with CMAKE_PREFIX_PATH as for a build; ends with 66 on a report.
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1
cmake -S "$tree" -B "$folder" -G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=None -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 \
  -DCMAKE_CXX_FLAGS="-O1 -g1 -fsanitize=thread" -DSESTINA_ENABLE_TESTS=ON -DCMAKE_PREFIX_PATH="${CMAKE_PREFIX_PATH:-$tree/build/deps/host}"
cmake --build "$folder" --target unit_core
OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=1 OMP_PROC_BIND=false "$folder/tests/unit_core" --gtest_repeat="${2:-1}" --gtest_brief=1 \
  --gtest_filter='AsyncRefresh*:PagedState*:SkewBlocks*:RefreshWorkers*:WorkerPool*:RefreshVerdict*'
