#!/usr/bin/env bash
# shared_lambdas.sh ARCHIVE...: functions around KOKKOS_LAMBDAs of headers that several objects of a CUDA build define;
# kernels/blas/matrix_passes.hpp says why that crashes, or not, as the linker chooses. Ends with 1 when there are any.
set -euo pipefail
for archive in "$@"; do nm -A "$archive" 2>/dev/null; done |
  awk '$(NF-1) == "W" && /__nv_hdl_wrapper_t/ {split($1, part, ":"); if (!seen[$NF, part[2]]++) {n[$NF]++; in_[$NF] = in_[$NF] " " part[2]}}
       END {for (s in n) if (n[s] > 1) print in_[s] "\t" s}' | sort | c++filt | cut -c1-300 | { ! grep .; }
