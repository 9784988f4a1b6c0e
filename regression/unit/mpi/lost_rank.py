"""A rank that leaves a test early ends all ranks in seconds, with its own words, and not after a wait for it has found no
end (60 s). Usage: lost_rank.py MPIEXEC UNIT_MPI. Python 3.11, standard library alone."""
import subprocess
import sys
import time

LIMIT = 20  # seconds: a third of what a wait would take, and several times what a start takes on two busy cores

mpiexec, program = sys.argv[1:]
for tests in ("Throws", "Asserts"):
    begin = time.monotonic()
    done = subprocess.run([mpiexec, "-n", "3", program, "--gtest_also_run_disabled_tests", f"--gtest_filter=DISABLED_LostRank.{tests}"],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    seconds = time.monotonic() - begin
    for wrong, what in ((done.returncode == 0, "passed"), (seconds > LIMIT, "took too long"),
                        ("this rank gives up" not in done.stdout, "does not say why"), ("waited" in done.stdout, "waited for a rank")):
        if wrong:
            sys.exit(f"{done.stdout}\n{tests}: {what} ({seconds:.1f} s)")
    print(f"{tests}: {seconds:.1f} s")
