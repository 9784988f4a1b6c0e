#!/usr/bin/env python3
"""Whether a change costs speed: the instructions of some steps and kernels, counted by valgrind and compared with the last
count of the same compiler, options and libraries.

  speed_guard.py speed_cases             compares; ends with 1 where a case takes 5 % more, with 77 where nothing can be compared
  speed_guard.py speed_cases --record WHY   adds the counts to the history, with the reason for them
  speed_guard.py --report                draws the history into regression/reports/speed_guard.md

speed_cases is the program of that name of a build (bench/speed_cases). Counts are those of a processor with AVX2 and of one
thread, whatever this machine has; they say nothing about memory. A build whose own code goes further than AVX2 cannot be
counted: configure it with -DSESTINA_MARCH=x86-64-v3."""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
HISTORY = HERE / "history.jsonl"
ALLOWED = 0.05  # of a loss; counts of one build differ by less than a thousandth
FAILED, SKIPPED = 1, 77
LIBRARIES = re.compile(r"lib(dnnl|openblas|blas|lapack|gomp|omp|stdc\+\+)\b")
# Libraries choose their kernels by this, and not by the processor; nothing else takes part.
ENVIRONMENT = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
               "OMP_PROC_BIND": "false", "OMP_WAIT_POLICY": "passive", "LC_ALL": "C"}


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def libraries(program):
    """The libraries whose versions change the counts, by the names of their files."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    paths = [line.split("=>")[1].split()[0] for line in listed.splitlines() if "=>" in line and "/" in line]
    names = {pathlib.Path(path).resolve().name for path in paths if LIBRARIES.search(path)}
    return [os.confstr("CS_GNU_LIBC_VERSION"), *sorted(names)]


def build_of(program):
    """What must be the same for counts to be compared."""
    compiler, build = subprocess.run([program, "--build"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {"compiler": compiler, "build": build, "libraries": libraries(program)}


def count_case(program, name, arguments=()):
    """Instructions of one case, in a process of its own, so that no case changes the count of another one."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no",
               "--toggle-collect=*counted_rounds*", program, *arguments, name]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT)
    if re.search("unrecognised instruction|unhandled instruction bytes", done.stderr, re.IGNORECASE):
        skip("this build has instructions that valgrind does not know; -DSESTINA_MARCH=x86-64-v3 makes one without")
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode != 0 or not counted:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}\n{done.stderr[-2000:]}")
    if counted.group(1) == "0":
        sys.exit(f"nothing was counted of {name}: callgrind did not find counted_rounds")
    return int(counted.group(1))


def count(program, cases=(), more=None):
    """Instructions of these cases, or of all. more: of that case one round more."""
    if not shutil.which("valgrind"):
        skip("there is no valgrind")
    names = cases or subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name: count_case(program, name, ["--more"] if name == more else []) for name in names}


def read_history(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_of(history, build):
    fitting = [line for line in history if all(line[key] == build[key] for key in build)]
    return fitting[-1] if fitting else None


def compare(before, now):
    """Prints a line a case; true where none has become slower than allowed."""
    good = True
    for name, instructions in now.items():
        if name not in before:
            print(f"{name:20} {'-':>14} {instructions:14}   new: no record yet")
            continue
        change = instructions / before[name] - 1
        slower = change > ALLOWED
        good = good and not slower
        print(f"{name:20} {before[name]:14} {instructions:14} {100 * change:+7.2f} %{'   SLOWER' if slower else ''}")
    return good


def check(program, arguments):
    build = build_of(program)
    last = last_of(read_history(arguments.history), build)
    described = f"{build['compiler']}, {build['build']}, {', '.join(build['libraries'])}"
    if last is None:
        skip(f"no record for {described} in {arguments.history}; --record WHY adds one")
    print(f"instructions, before ({last['date']}: {last['why']}) and now; {described}")
    if not compare(last["counts"], count(program, arguments.cases, arguments.more)):
        print(f"more than {100 * ALLOWED:.0f} % slower. Where that is meant: --record WHY")
        sys.exit(FAILED)


def record(program, arguments):
    build = build_of(program)
    if "-march=native" in build["build"]:
        sys.exit("not recorded: -march=native is another thing on another machine; -DSESTINA_MARCH=x86-64-v3 is the same on all")
    last, counts = last_of(read_history(arguments.history), build), count(program)
    with arguments.history.open("a") as file:
        file.write(json.dumps({"date": str(datetime.date.today()), "why": arguments.record, **build, "counts": counts}) + "\n")
    compare(last["counts"] if last else {}, counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", help="these alone")
    parser.add_argument("--more", metavar="CASE", help="one round more of it, to see that the guard notices")
    parser.add_argument("--history", type=pathlib.Path, default=HISTORY)
    parser.add_argument("--record", metavar="WHY")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_intermixed_args()
    if arguments.report:
        from speed_report import write_report
        return write_report(read_history(arguments.history), ROOT / "regression/reports")
    if arguments.program is None:
        parser.error("which program? bench/speed_cases of a build")
    return (record if arguments.record else check)(arguments.program.resolve(), arguments)


if __name__ == "__main__":
    main()
