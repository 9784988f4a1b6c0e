# Functions for setup.sh: the jobs of the test suite. Every job runs, whatever failed before it; the last line of the
# output counts over all of them.
passed=0 failed=0 skipped=0
failures=() unsteady=()  # names of tests
times=()                 # a line for each job

# A job is a function and a line here, with its name and its budget: the minutes that it may take on two cores with AVX2.
test_jobs() {
  trap summary EXIT
  job "build" 9 build_tests
  begin_sanitized_build
  job "host tests" 12 host_tests
  job "Slurm" 3 slurm_tests
  job "AVX2" 2 avx2_tests
  job "sanitizers" 8 sanitizer_tests
  job "CUDA" 8 cuda_tests
  job "speed guard" 3 speed_tests
  say "done"
}

# Whether the program works here at all: some unit tests of every room but `app`, one training, a resume, two ranks.
quick_jobs() {
  trap summary EXIT
  job "quick build" 6 build_quick_tests
  job "quick tests" 2 quick_tests
  say "done; the whole suite: ./setup.sh test"
}

allowed=0  # seconds that the jobs had which ran

# job NAME MINUTES FUNCTION: notes how long it took. Over its budget is worth a look, and no failure: machines differ. One that
# would end after SESTINA_TEST_MINUTES, at the pace of those before it, is skipped: a suite that is cut off proves nothing.
job() {
  local name=$1 budget=$(($2 * 60)) begin=$SECONDS over="" limit=$((${SESTINA_TEST_MINUTES:-85} * 60)) end
  end=$((allowed ? begin + budget * (begin > allowed ? begin : allowed) / allowed : 0))  # the first one always runs
  if ((end > limit)); then
    say "$name: skipped, because the suite would take $(((end + 59) / 60)) minutes on this machine (SESTINA_TEST_MINUTES=$((limit / 60)))"
    skipped=$((skipped + 1))
    times+=("$(printf '%-12s skipped' "$name")")
    return 0
  fi
  allowed=$((allowed + budget))
  "$3"
  ((SECONDS - begin <= budget)) || over="  over its budget"
  times+=("$(printf '%-12s %5d s of %d%s' "$name" $((SECONDS - begin)) "$budget" "$over")")
}

summary() {
  local code=$?
  [ -z "$sanitized_build" ] || kill -- -"$sanitized_build" 2>/dev/null || true
  ((code == 0 || failed)) || failed=1
  ((failed == 0)) || code=1
  ((${#times[@]} == 0)) || printf 'time: %s\n' "${times[@]}"
  ((${#unsteady[@]} == 0)) || printf 'passed at the second try only: %s\n' "${unsteady[@]}"
  ((${#failures[@]} == 0)) || printf 'FAILED: %s\n' "${failures[@]}"
  echo "$passed passed, $failed failed, $skipped skipped"
  exit "$code"
}

built=""  # what could be built of the host's tests: nothing, or all that a job asked for

build_tests() {
  prepare host
  other_onednn
  say "building Sestina and its tests"
  if compile ci "$build" all; then built=yes; else build_failed "$build"; fi
}

host_tests() {
  [ -n "$built" ] || return 0
  say "host tests"
  # Launchers and daemons of others stand between these tests and the program: a test that fails is tried once more, and
  # named at the end.
  # More at a time than there are cores: ranks, and those who watch them, wait for half of their time.
  run_ctest "$build" --label-exclude slurm --parallel $((jobs + 2)) --repeat until-pass:2
}

slurm_tests() {
  [ -n "$built" ] || return 0
  say "batch scripts on a Slurm of the tests' own, alone on the machine"
  run_ctest "$build" --label-regex slurm --parallel 1 --repeat until-pass:2
}

# Adds to `options` a oneDNN of the other interface than Debian's (2.6), for the tests of products: 3.2 comes as Python
# packages for GNU OpenMP. Where it cannot be had these tests are skipped.
other_onednn() {
  local version=2023.2.0 folder="$build/deps/onednn-3.2"
  [ "$(uname -m)" = x86_64 ] || return 0
  say "oneDNN 3.2 for the tests of products"
  if ! python_packages "$folder" onednn-cpu-gomp==$version onednn-devel-cpu-gomp==$version; then
    say "it cannot be had: skipped"
    skipped=$((skipped + 1))
    return 0
  fi
  [ -d "$folder/include" ] || cp -r "$folder"/*.data/data/* "$folder"
  options+=("-DSESTINA_OTHER_ONEDNN=$folder")
}

# What older processors compute, on whatever machine this is: libraries and our own products go no further than AVX2.
avx2_tests() {
  [ -n "$built" ] || return 0
  if [ "$(uname -m)" != x86_64 ]; then
    say "levels of processors are those of x86-64: skipped"
    skipped=$((skipped + 1))
    return 0
  fi
  if [ -r /proc/cpuinfo ] && ! grep -qm1 -E '^flags.* avx(512f|_vnni)' /proc/cpuinfo; then
    say "this processor goes no further than AVX2: the tests before were those"
    return 0
  fi
  say "kernels, core and three cases as on a processor with AVX2"
  export ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell
  run_ctest "$build" --label-regex '^(kernels|core)$'
  run_ctest "$build" --tests-regex '^case\.(llama-bf16|few-bits|bench)$'
  unset ONEDNN_MAX_CPU_ISA OPENBLAS_CORETYPE
}

build_quick_tests() {
  prepare host
  say "building Sestina and some of its tests"
  if compile ci "$build" programs unit_kernels unit_parallel unit_step; then built=yes; else build_failed "$build"; fi
}

quick_tests() {
  [ -n "$built" ] || return 0
  say "quick tests"
  run_ctest "$build" --repeat until-pass:2 \
    --tests-regex '^(kernels|parallel|step)\.|^style\.|^replay\.golden$|^case\.(llama-adamw|llama-bf16|resume|ranks)$'
}

# clang_compiles OPTIONS...: true where there is a clang++ with OpenMP that links with these options.
clang_compiles() { printf '#include <omp.h>\nint main() {}' | clang++ -fopenmp "$@" -x c++ - -o /dev/null 2>/dev/null; }

sanitized_build=""  # the process, and its group, that compiles for sanitizer_tests

# Compiles with sanitizers in the time for which ranks and daemons of the host's tests wait: as work that any other process
# interrupts at once. At the lowest priority alone it keeps a core to the end of its time slice, and so would ranks wait that
# wake for each message (tests of six ranks next to two compilers: 25 to 29 s, 15 to 18 s so). By clang, in which a warning is
# an error: it takes half of the time that g++ takes for it, and it is the compiler of HIP and SYCL, for whose twins
# unit_portable is.
begin_sanitized_build() {
  prepare host
  ! clang_sanitizes || options+=(-DCMAKE_CXX_COMPILER=clang++ -DCMAKE_C_COMPILER=clang -DCMAKE_COMPILE_WARNING_AS_ERROR=ON)
  mkdir -p "$build/asan"
  touch "$build/asan/build.log"  # sanitizer_tests reads it, perhaps at once
  set -m
  (
    renice -n 19 $BASHPID
    ! command -v chrt >/dev/null || chrt --idle --pid 0 $BASHPID || true
    compile cpu-asan "$build/asan" programs unit_tests fuzz_replays unit_mpi
  ) >/dev/null 2>&1 &
  sanitized_build=$!
  set +m
}
clang_sanitizes() { clang_compiles -fsanitize=address,undefined; }

# The unit tests, the kept fuzz inputs, and some suites of two ranks (messages, sums, training steps) once more, with checks of
# every memory access and every undefined operation.
sanitizer_tests() {
  if ! clang_sanitizes; then
    say "no clang++ with OpenMP and sanitizers (libomp-dev, libclang-rt-dev): what it makes of the sources is skipped"
    skipped=$((skipped + 1))
  fi
  say "the programs and the unit tests with sanitizers, which are compiled since the tests began"
  show_progress "$build/asan/build.log" tail --pid="$sanitized_build" -f /dev/null
  wait "$sanitized_build" || { build_failed "$build/asan"; return 0; }
  passed=$((passed + 1))
  say "tests under AddressSanitizer and UndefinedBehaviorSanitizer"
  export ASAN_OPTIONS=detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1
  export LSAN_OPTIONS="suppressions=$root/regression/unit/leaks.supp:print_suppressions=0"
  run_ctest "$build/asan" --label-regex quick --label-regex 'unit|fuzz' --label-exclude mpi
  unset ASAN_OPTIONS LSAN_OPTIONS
  say "two ranks under the sanitizers"
  run_ctest "$build/asan" --parallel 1 --tests-regex '^mpi\.(Communicator|TensorGroups|TraceOrder|TraceFile)\.2$'
  unset UBSAN_OPTIONS
}

# The program runs on the null device (regression/null_device), which checks and counts what its host side does. Where
# there is a GPU, the unit tests that are typed over the execution spaces, those of ranks, and the golden files run on it.
cuda_tests() {
  if ! find_nvcc; then
    say "no nvcc: the CUDA build is skipped"
    skipped=$((skipped + 1))
    return 0
  fi
  local gpu="" preset=cuda-ci dir="$build/cuda-ci"
  if nvidia-smi --list-gpus >/dev/null 2>&1; then
    gpu="unit_kernels unit_core unit_io unit_step unit_mpi sestina-replay" preset=cuda dir="$build/cuda"
  elif clang_compiles; then
    export NVCC_WRAPPER_DEFAULT_COMPILER=clang++  # takes half of the time that g++ takes for the host's side
  fi
  prepare cuda
  say "building Sestina for CUDA"
  compile $preset "$dir" sestina $gpu || { build_failed "$dir"; return 0; }
  passed=$((passed + 1))
  say "the CUDA program on the null device"
  if [ "$(uname -m)" = x86_64 ]; then
    run_ctest "$dir" --label-regex null_device
  else
    say "the null device is for x86-64: skipped"
    skipped=$((skipped + 1))
  fi
  if [ -n "$gpu" ]; then
    say "unit tests and golden files on the GPU"
    run_ctest "$dir" --label-regex '^(kernels|core|io|step|mpi)$'
    run_ctest "$dir" --tests-regex '^replay'
    say "what a GPU must show (regression/gpu)"
    run_ctest "$dir" --label-regex '^gpu$'
  else
    say "no GPU here: its unit tests and golden files are skipped"
    skipped=$((skipped + 1))
  fi
}

# Instructions of steps and kernels, compared with the last record, of a build that goes no further than AVX2: valgrind, which
# counts them, knows no more, and records of -march=native would hold for one machine.
speed_tests() {
  if [ "$(uname -m)" != x86_64 ] || ! command -v valgrind >/dev/null; then
    say "no valgrind for x86-64: the speed guard is skipped"
    skipped=$((skipped + 1))
    return 0
  fi
  prepare host
  say "building what the speed guard counts"
  compile portable "$build/portable" speed_cases || { build_failed "$build/portable"; return 0; }
  passed=$((passed + 1))
  say "instructions of steps and kernels"
  run_ctest "$build/portable" --tests-regex '^speed_guard'
}

build_failed() {
  tail -n 60 "$1/build.log" >&2
  say "FAILED: the build in $1 (log: $1/build.log)"
  failed=$((failed + 1))
}

# run_ctest DIR OPTIONS...: runs the tests there and adds to the counts what CTest's own record says.
run_ctest() {
  local dir=$1 record="$1/tests.xml" log="$1/tests.log" tests bad not_run name written
  shift
  rm -f "$record"
  ctest --test-dir "$dir" --parallel "$jobs" --output-on-failure --no-tests=error --output-junit "$record" "$@" | tee "$log" || true
  if [ ! -f "$record" ]; then
    say "FAILED: no test ran in $dir"
    failed=$((failed + 1))
    return 0
  fi
  tests=$(suite_count "$record" tests)
  bad=$(suite_count "$record" failures)
  not_run=$(($(suite_count "$record" skipped) + $(suite_count "$record" disabled)))
  failed=$((failed + bad))
  skipped=$((skipped + not_run))
  passed=$((passed + tests - bad - not_run))
  while read -r name; do
    written=$(sed 's/</\&lt;/g; s/>/\&gt;/g' <<<"$name")  # as XML writes it
    if grep -q "<testcase name=\"$written\".* status=\"fail\"" "$record"; then failures+=("$name"); else unsteady+=("$name"); fi
  done < <(sed -nE 's/^ *[0-9]+\/[0-9]+ +Test +#[0-9]+: (.+) \.+ *\*\*\*(Failed|Timeout|Exception|Not Run).*/\1/p' "$log" | sort -u)
}
suite_count() { grep -o -m1 "^[[:space:]]*$2=\"[0-9]*\"" "$1" | grep -o '[0-9]*'; }
