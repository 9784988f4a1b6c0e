#!/usr/bin/env python3
"""The guard notices what it is for: one round more of a case in ten fails, the same work passes, another compiler or another
build is not compared.   test_speed_guard.py speed_cases"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import speed_guard
import speed_report

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
CASES = ["SwiGLU", "RMSNorm"]  # those that take the least time to count


class SpeedGuard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.build = speed_guard.build_of(PROGRAM)
        cls.counts = speed_guard.count(PROGRAM, CASES)

    def check(self, counts, *cases, **other):
        line = {"date": "2026-01-01", "why": "a test", **self.build, **other, "counts": counts}
        with tempfile.TemporaryDirectory() as work:
            history = pathlib.Path(work) / "history.jsonl"
            history.write_text(json.dumps(line) + "\n")
            command = [sys.executable, "-B", speed_guard.HERE / "speed_guard.py", PROGRAM, "--history", history, *cases]
            return subprocess.run(command, capture_output=True, text=True)

    def test_same_work_passes(self):
        done = self.check(self.counts, *CASES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("SLOWER", done.stdout)

    def test_counts_repeat(self):
        again = speed_guard.count(PROGRAM, CASES)
        for name, instructions in self.counts.items():
            self.assertLess(abs(again[name] / instructions - 1), 1e-3, name)

    def test_one_round_more_of_ten_fails(self):
        done = self.check(self.counts, "--more=SwiGLU", *CASES)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        slower = [line for line in done.stdout.splitlines() if "SLOWER" in line]
        self.assertEqual(len(slower), 1, done.stdout)
        self.assertRegex(slower[0], r"^SwiGLU .* \+(9\.9\d|10\.0\d) % ")

    def test_bound_is_five_percent(self):
        for factor, code in ((1 / 1.06, 1), (1 / 1.04, 0)):
            done = self.check({name: int(factor * n) for name, n in self.counts.items()}, "RMSNorm")
            self.assertEqual(done.returncode, code, done.stdout + done.stderr)

    def test_other_builds_are_not_compared(self):
        for other in ({"compiler": "GNU 1.0"}, {"build": "-O0"}, {"libraries": []}):
            done = self.check(self.counts, **other)
            self.assertEqual(done.returncode, 77, done.stdout + done.stderr)
            self.assertIn(f"no record for {self.build['compiler']}", done.stdout)

    def test_case_without_record_is_named(self):
        done = self.check({"RMSNorm": self.counts["RMSNorm"]}, *CASES)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"(?m)^SwiGLU .* no record yet$")

    def test_report_draws_every_build(self):
        build = {"compiler": "GNU 1.0", "build": "-O1", "libraries": ["glibc 1"]}
        lines = [{"date": "2026-01-01", "why": "first", **build, "counts": {"a": 2000000}},
                 {"date": "2026-01-02", "why": "second", **build, "counts": {"a": 1000000, "b": 5}},
                 {"date": "2026-01-03", "why": "other", **build, "build": "-O2", "counts": {"a": 7000000}}]
        with tempfile.TemporaryDirectory() as work:
            speed_report.write_report(lines, pathlib.Path(work))
            page = (pathlib.Path(work) / "speed_guard.md").read_text()
            self.assertIn("| a | 2.000 | 1.000 | -50.00 % |", page)
            self.assertIn("| b | - | 0.000 | new |", page)
            self.assertEqual([path.name for path in pathlib.Path(work).glob("*.svg")], ["speed_guard_1.svg"])
            self.assertIn("(speed_guard_1.svg)", page)


if __name__ == "__main__":
    unittest.main()
