#!/usr/bin/env python3
"""Parts of setup.sh that need no build: one Kokkos for all checkouts, jobs with their budgets, the words it knows."""
import pathlib
import re
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

BEFORE = r"""
set -euo pipefail
root=$1 cache=$2/cache machine_id=one cuda_arch=90 failed=0 started=0
say() { echo "== $*"; }
fail() { local code=$1; shift; echo "$*"; exit "$code"; }
source "$root/cmake/kokkos.sh"
source "$root/cmake/test_jobs.sh"
cd "$2"
"""


class Setup(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.work = pathlib.Path(holder.name).resolve()

    def shell(self, script, code=0):
        done = subprocess.run(["bash", "-c", BEFORE + script, "-", ROOT, self.work], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def test_kokkos_is_built_once_for_all_checkouts(self):
        out = self.shell(r"""
install_kokkos() { echo "install $1"; touch "$2/.complete" "$2/library"; }
mkdir -p a/deps/host/lib  # of a setup.sh that built it there
build_kokkos host "$PWD/a/deps/host"
build_kokkos host "$PWD/a/deps/host"
build_kokkos host "$PWD/b/deps/host"
machine_id=two
build_kokkos host "$PWD/b/deps/host"
""")
        self.assertEqual(out, "install host\n" * 2)
        self.assertTrue((self.work / "a/deps/host/library").exists())
        self.assertNotEqual((self.work / "a/deps/host").resolve(), (self.work / "b/deps/host").resolve())

    def test_what_was_not_built_to_its_end_is_built_again(self):
        self.shell('install_kokkos() { exit 70; }\nbuild_kokkos host "$PWD/a"', code=70)
        self.assertFalse((self.work / "a").exists())
        self.assertIn("again", self.shell('install_kokkos() { echo again; }\nbuild_kokkos host "$PWD/a"'))

    def test_each_job_is_told_with_its_time_and_one_that_took_too_long(self):
        out = self.shell("""
slow() { SECONDS=$((SECONDS + 121)); passed=3; }
trap summary EXIT
job quick 2 true
job slow 2 slow
""")
        self.assertRegex(out, r"time: quick +0 s of 120\ntime: slow +12[1-3] s of 120  over its budget\n3 passed, 0 failed, 0 skipped\n$")

    def test_what_failed_twice_is_told_from_what_passed_at_the_second_try(self):
        out = self.shell("""
ctest() {
  echo '1/3 Test #1: core.Model<A, B> ...***Failed 0.1 sec'
  echo '2/3 Test #2: core.Model<C> ...***Failed 0.1 sec'
  echo '<testsuite' >tests.xml
  printf '\\t%s="%s"\\n' tests 3 failures 1 disabled 0 skipped 0 >>tests.xml
  echo '<testcase name="core.Model&lt;A, B&gt;" time="0" status="fail">' >>tests.xml
  echo '<testcase name="core.Model&lt;C&gt;" time="0" status="run">' >>tests.xml
}
jobs=1
trap summary EXIT
run_ctest .
""", code=1)
        self.assertRegex(out, r"passed at the second try only: core\.Model<C>\nFAILED: core\.Model<A, B>\n2 passed, 1 failed, 0 skipped\n$")

    def test_a_job_that_would_end_too_late_at_the_pace_of_the_others_is_skipped(self):
        jobs = """
slow() { SECONDS=$((SECONDS + 300)); passed=$((passed + 1)); }
trap summary EXIT
job first 2 slow
job second 2 slow
job third 1 slow
"""
        out = self.shell("SESTINA_TEST_MINUTES=12\n" + jobs)
        self.assertIn("== third: skipped, because the suite would take 13 minutes on this machine (SESTINA_TEST_MINUTES=12)\n", out)
        self.assertRegex(out, r"time: third +skipped\n2 passed, 0 failed, 1 skipped\n$")
        self.assertRegex(self.shell("SESTINA_TEST_MINUTES=14\n" + jobs), r"\n3 passed, 0 failed, 0 skipped\n$")

    def test_the_jobs_fit_into_three_quarters_of_an_hour(self):
        jobs = (ROOT / "cmake/test_jobs.sh").read_text().split("test_jobs() {")[1].split("}")[0]
        minutes = [int(n) for n in re.findall(r'^  job "[^"]+" (\d+) \w+$', jobs, re.M)]
        self.assertGreater(len(minutes), 5)
        self.assertLessEqual(sum(minutes), 45)

    AHEAD = """
prepare() { options=(); }
clang_sanitizes() { true; }
say() { :; }
root=. build=$PWD/build
source "$1/cmake/test_jobs.sh"
show_progress() { local log=$1; shift; "$@" >>"$log"; }
run_ctest() { echo "tests ${options[*]-}"; }
trap summary EXIT
"""

    def test_what_is_compiled_for_a_later_job_is_waited_for(self):
        begin = "compile() { sleep 0.5; echo the log >build/asan/build.log; echo \"$(nice)\" >built; return %d; }\nclang_sanitizes() { false; }\nbegin_sanitized_build\nsanitizer_tests\n"
        out = self.shell(self.AHEAD + begin % 0)
        self.assertEqual((self.work / "built").read_text(), "19\n")
        self.assertRegex(out, r"tests[\s\S]*tests[\s\S]*\n1 passed, 0 failed, 1 skipped\n$")
        out = self.shell(self.AHEAD + begin % 1, code=1)
        self.assertRegex(out, r"^the log\n0 passed, 1 failed, 1 skipped\n$")
        self.assertNotIn("tests", out)

    def test_it_ends_with_the_script(self):
        out = self.shell(self.AHEAD + "compile() { sleep 300 & echo $! >child; wait; }\nbegin_sanitized_build\n"
                                      "until [ -s child ]; do sleep 0.05; done\nfailures=(one)\nfalse", code=1)
        self.assertIn("FAILED: one", out)
        child = int((self.work / "child").read_text())
        for _ in range(100):
            stat = pathlib.Path(f"/proc/{child}/stat")
            if not stat.exists() or stat.read_text().split()[2] == "Z":
                return
            time.sleep(0.05)
        self.fail("the compilation goes on")

    def test_a_job_that_ends_the_script_is_a_failure(self):
        self.assertRegex(self.shell("trap summary EXIT\nbad() { false; }\njob bad 2 bad", code=1), r"\n?0 passed, 1 failed, 0 skipped\n$")

    def test_words(self):
        said = subprocess.run([ROOT / "setup.sh", "help"], text=True, capture_output=True, check=True).stdout
        readme = (ROOT / "README.md").read_text()
        for words in ("run", "test", "test quick"):
            self.assertTrue(re.search(rf"^\./setup\.sh {words}  ", said, re.M), said)
            self.assertIn(f"\n./setup.sh {words}  ", readme)
        wrong = subprocess.run([ROOT / "setup.sh", "test", "some"], text=True, capture_output=True)
        self.assertEqual((wrong.returncode, "there is quick" in wrong.stderr), (64, True))


if __name__ == "__main__":
    unittest.main()
