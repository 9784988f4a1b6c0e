#!/usr/bin/env python3
"""The runner of the experiments: what it makes of known curves, and a few updates of two cells with the program."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import delays
import experiments
import judge
import kernel_text
import spectrum
import tables
from results import LADDER, Results, next_rate

HERE = pathlib.Path(__file__).resolve().parent
STEPS, SEEDS = 1000, [1, 2]
RUNNER = [sys.executable, "-B", HERE / "run_experiment.py"]
SHORT = ["--steps", "8", "--seeds", "1", "2"]
TINY = ["model.hidden_size=16", "model.num_hidden_layers=2", "parallel.pp=2", "schedule.warmup_steps=2",
        "metrics.eval_every=2", "metrics.eval_batches=2"]


def write_run(results, name, rate, seed, loss_at, steps=STEPS):
    """Metrics of a run whose validation loss is a function of the update."""
    folder = results.folder(results.cells[name], rate, seed)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(50, steps + 1, 50):
            file.write(json.dumps({"kind": "train", "step": step, "step_s": 0.02}) + "\n")
            file.write(json.dumps({"kind": "val", "step": step, "loss": loss_at(step)}) + "\n")


class KernelText(unittest.TestCase):
    def test_files_come_in_the_order_of_hashes_of_their_names(self):
        files = [(f"fs/{i}.c", b"%d\n\n\n" % i) for i in range(9)]
        text = kernel_text.chosen(files, 1000)
        self.assertEqual(text, kernel_text.chosen(reversed(files), 1000))
        self.assertEqual(sorted(text.split()), [b"%d" % i for i in range(9)])
        self.assertNotEqual(text.split(), [b"%d" % i for i in range(9)])
        self.assertEqual(kernel_text.chosen(files, 7), text[:7])

    def test_another_package_is_refused(self):
        with tempfile.TemporaryDirectory() as cache:
            for name in kernel_text.PACKAGES:
                (pathlib.Path(cache) / f"{name}_1_all.deb").write_bytes(b"no package")
            done = subprocess.run([sys.executable, "-B", HERE / "kernel_text.py", f"{cache}/out", "--cache", cache],
                                  capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("has the digest", done.stderr)
            self.assertFalse((pathlib.Path(cache) / "out").exists())


class KnownCurves(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.results = Results(pathlib.Path(place.name), experiments.CELLS, STEPS, SEEDS)

    def write(self, name, slower, best=0, steps=STEPS):
        """Loss 4 - update / (1000 slower), a seed above and one below; worse away from rung `best` of the grid."""
        middle = LADDER.index(experiments.CELLS[name].rate)
        for rung in {-1, 0, 1, best - 1, best, best + 1}:
            for seed in SEEDS if rung == best else SEEDS[:1]:
                shift = 0.01 * (1 if seed == 1 else -1) + 0.1 * abs(rung - best)
                write_run(self.results, name, LADDER[middle + rung], seed,
                          lambda t: 4 - t / (1000 * slower) + shift, steps)

    def test_slowdowns_and_verdicts(self):
        self.write("adamw_d0", 1)
        self.write("adamw_d4", 1.8)
        self.write("adamw_pipedream-lr_d4", 1.4)
        self.write("br-2nd-bi_d4", 1.0)
        self.write("br-2nd-bi_d0", 1.0)
        slow = self.results.slowdown("adamw_d4", "adamw_d0", 0.5)
        self.assertAlmostEqual(slow.value, 1.8, 9)
        self.assertFalse(slow.bound)
        self.assertTrue(self.results.slowdown("adamw_d4", "adamw_d0", 0.9).bound)
        self.assertAlmostEqual(self.results.slowdown_at_end("adamw_d4", "adamw_d0").value, 1.8, delta=0.02)
        self.assertAlmostEqual(self.results.slowdown_at_end("adamw_d0", "adamw_d4").value, 1 / 1.8, delta=0.02)
        self.assertAlmostEqual(self.results.loss("adamw_d4") - self.results.loss("adamw_d0"), 1 - 1 / 1.8, 9)
        verdicts = [claim(self.results)[0] for _, claim in delays.B2_CLAIMS]
        self.assertEqual(verdicts, [judge.HOLDS] * 6 + [judge.MISSING] * 2)
        self.write("br-2nd-bi_d4", 1.6)
        self.results.read.clear()
        verdicts = [claim(self.results)[0] for _, claim in delays.B2_CLAIMS]
        self.assertEqual(verdicts[:6], [judge.FAILS] * 6)

    def test_claims_want_all_seeds(self):
        self.write("adamw_d0", 1)
        self.assertIsNotNone(self.results.of_all_seeds().loss("adamw_d0"))
        folder = self.results.folder(experiments.CELLS["adamw_d0"], 3e-3, 2)
        (folder / "metrics.jsonl").unlink()
        (folder / "diverged").touch()
        self.results.read.clear()
        self.assertIsNone(self.results.of_all_seeds().loss("adamw_d0"))
        self.assertIn("1 of 2 seeds, 1 diverged", tables.row(self.results, "adamw_d0", "adamw_d0")[3])

    def test_bounds_do_not_decide_more_than_they_say(self):
        number, bound = judge.Number, lambda x: judge.Number(x, True)
        self.assertEqual(judge.less(number(1), bound(2), "slowdown"), judge.HOLDS)
        self.assertEqual(judge.less(number(3), bound(2), "slowdown"), judge.OPEN)
        self.assertEqual(judge.less(bound(2), number(3), "slowdown"), judge.OPEN)
        self.assertEqual(judge.less(bound(2), number(1), "slowdown"), judge.FAILS)
        self.assertEqual(judge.less(number(1), number(1.01), "slowdown"), judge.CLOSE)

    def test_a_grid_grows_at_its_edge(self):
        cell = experiments.CELLS["adamw_d0"]
        losses = {3e-3: 2.0, 1e-3: 2.1, 1e-2: 2.2}
        self.assertIsNone(next_rate(cell, losses))
        losses[1e-2] = 1.9
        self.assertEqual(next_rate(cell, losses), 3e-2)
        losses[3e-2] = float("inf")
        self.assertIsNone(next_rate(cell, losses))
        self.write("adamw_d0", 1, best=1)
        self.assertEqual(self.results.rate(cell), 1e-2)

    def test_a_run_that_is_not_complete_does_not_count(self):
        self.write("adamw_d0", 1, steps=STEPS - 50)
        self.assertIsNone(self.results.loss("adamw_d0"))
        self.assertIn("not run", tables.row(self.results, "adamw_d0", "adamw_d0"))


class Spectrum(unittest.TestCase):
    def test_singular_values(self):
        tall = [[1, 2], [3, 4], [5, 6]]
        for rows, values in (([[3, 0, 0], [0, -2, 0]], [3, 2]), (tall, [9.5255180916, 0.5143005807])):
            for found, value in zip(spectrum.singular_values(rows), values, strict=True):
                self.assertAlmostEqual(found, value, 9)


class TheProgram(unittest.TestCase):
    def test_two_cells(self):
        with tempfile.TemporaryDirectory() as place:
            place = pathlib.Path(place)
            self.run_cells(place)
            final = {path.parent: path.read_text() for path in place.glob("runs/*/*/metrics.jsonl")}
            names = {folder.parent.name for folder in final}
            self.assertEqual(names, {"adamw_d0", "br-2nd-bi_d4"})
            self.assertGreaterEqual(len(final), 8)  # three rates and another seed each
            self.assertFalse(list(place.glob("runs/*/*/checkpoints")))
            self.interrupt_one(place, final)
            self.report(place)
            self.go_on_elsewhere(place)
            self.refuse_other_settings(place)

    def test_a_look_at_the_last_checkpoint(self):
        with tempfile.TemporaryDirectory() as place:
            said = self.run_cells(pathlib.Path(place), "train.global_batch=2", "data.sequence_length=8",
                                  "metrics.eval_batches=1", only=("B6", "hessian_br-2nd-bi"))
            self.assertRegex(said, r"bilateral < 0\.8 \| \*\*(holds|does not hold)\*\* \| \d\.\d\d < 0\.80 \|")

    def run_cells(self, place, *more, code=0, only=("B2", "adamw_d0", "br-2nd-bi_d4"), work="runs", kept=None):
        keep = ["--kept", kept] if kept else []
        done = subprocess.run([*RUNNER, "--work", place / work, *keep, *SHORT, "--sestina", os.environ["SESTINA"], "--text",
                               HERE.parent / "data/harbour.txt", "--only", only[0], "--cells", *only[1:], "--jobs", "2",
                               "--override", *TINY, *more], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def interrupt_one(self, place, final):
        """Half of one run's lines are lost: that run alone is trained again, to the same losses."""
        folder = sorted(final)[0]
        text = final[folder].splitlines(keepends=True)
        (folder / "metrics.jsonl").write_text("".join(text[: len(text) // 2]))
        said = self.run_cells(place)
        self.assertEqual(sum(" seed " in line and " lr " in line for line in said.splitlines()), 1, said)
        losses = [[line["loss"] for line in map(json.loads, lines.splitlines()) if line["kind"] == "val"][-1]
                  for lines in (final[folder], (folder / "metrics.jsonl").read_text())]
        self.assertEqual(*losses)
        for other, before in final.items():
            if other != folder:
                self.assertEqual((other / "metrics.jsonl").read_text(), before)

    def report(self, place):
        page = place / "page.md"
        page.write_text("before\n<!-- table B2-8 -->\nold\n<!-- end -->\nafter\n")
        subprocess.run([*RUNNER, "--work", place / "runs", *SHORT, "--table", "--report", page], check=True)
        text = page.read_text()
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n") and "old" not in text)
        rows = [line for line in text.splitlines() if line.startswith("| AdamW | 0 |")]
        self.assertEqual(len(rows), 1)
        self.assertRegex(rows[0], r"\| \d\.\d{4} \(spread \d\.\d{4}\) \| \+0\.0000 \|")
        self.assertRegex(text, r"\| slowdown of basis rotation .* \| not run \|")  # it needs cells that did not run
        self.assertIn("</svg>", (place / "page_B2-8.svg").read_text())
        page.write_text(text)
        subprocess.run([*RUNNER, "--work", place / "no runs", *SHORT, "--table", "--report", page, "--only", "B3"], check=True)
        self.assertEqual(page.read_text(), text)  # tables of other experiments stay

    def go_on_elsewhere(self, place):
        """Finished runs are kept in a file: without their folders none is trained again, and the table is the same."""
        kept, here = place / "kept.jsonl", [*RUNNER, "--work", place / "runs", *SHORT, "--table"]
        self.run_cells(place, kept=kept)
        lines = kept.read_text().splitlines()
        self.assertGreaterEqual(len(lines), 8)
        elsewhere = [*RUNNER, "--work", place / "elsewhere", *SHORT, "--table", "--kept", kept]
        tables_made = [subprocess.run(command, check=True, capture_output=True).stdout for command in (here, elsewhere)]
        self.assertEqual(*tables_made)
        kept.write_text("\n".join(lines[1:]) + "\n")
        self.assertEqual(self.run_cells(place, work="elsewhere", kept=kept).count(" seed "), 1)
        self.assertEqual([path.name for path in (place / "elsewhere").glob("*/*")],
                         ["lr{lr:g}_seed{seed}".format(**json.loads(lines[0]))])
        self.assertEqual(len(kept.read_text().splitlines()), len(lines))
        self.assertIn("another deck, other settings or another text", self.run_cells(place, "train.clip_norm=0.5", kept=kept, code=1))
        kept.write_text("{}\n")
        self.assertIn("kept.jsonl:1 is no finished run", self.run_cells(place, kept=kept, code=1))

    def refuse_other_settings(self, place):
        self.assertIn("other settings", self.run_cells(place, "train.clip_norm=0.5", code=1))


if __name__ == "__main__":
    unittest.main()
