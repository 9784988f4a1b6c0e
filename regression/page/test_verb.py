"""`sestina report` as a command: what it takes and leaves out, its table, and how it follows a run that goes on. The program
is named by SESTINA."""
import csv
import fcntl
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

import make_runs

SESTINA = os.environ["SESTINA"]
DONE, USAGE, INPUT_MISSING = 0, 64, 66
DECK = """[run]
steps = 100000
threads = 1
space = "host"
[model]
family = "llama"
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 1
num_attention_heads = 2
vocab_size = 256
max_position_embeddings = 32
[data]
sequence_length = 16
[[data.source]]
format = "text"
path = "text.txt"
[train]
global_batch = 2
[schedule]
kind = "constant"
lr = 1e-3
"""


def report(*arguments):
    return subprocess.run([SESTINA, "report", *map(str, arguments)], capture_output=True, text=True, timeout=60)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not come")
        time.sleep(0.05)


class Verb(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def test_folders_without_metrics_are_left_out_and_named(self):
        runs = make_runs.make(self.folder / "runs")
        (self.folder / "runs/empty").mkdir()
        (self.folder / "runs/notes.txt").write_text("no folder")
        done = report(*sorted((self.folder / "runs").iterdir()), "-o", self.folder / "all.html")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertEqual(done.stderr.count("skipped"), 2)
        for name in ("empty", "notes.txt"):
            self.assertIn(name, done.stderr)
        self.assertEqual((self.folder / "all.html").read_text().count("<tr data-run="), len(runs))
        self.assertEqual(report(self.folder / "runs/empty").returncode, INPUT_MISSING)
        self.assertEqual(report(self.folder / "runs/empty", self.folder).returncode, INPUT_MISSING)

    def test_csv_has_every_step_and_a_column_per_series(self):
        runs = make_runs.make(self.folder / "runs")
        done = report("--csv", runs[0], runs[1])
        self.assertEqual(done.stdout.strip(), str(runs[0] / "report.csv"), done.stderr)
        with (runs[0] / "report.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 400 + 2000)
        self.assertEqual((rows[99]["run"], rows[99]["step"], rows[99]["tokens"]), ("0 adamw", "100", "102400"))
        self.assertGreater(float(rows[99]["validation_loss"]), 1)
        self.assertEqual(rows[98]["validation_loss"], "")
        self.assertEqual(report("--csv", "--watch", runs[0]).returncode, USAGE)

    def test_watch_follows_a_run_until_it_ends(self):
        (self.folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
        (self.folder / "deck.toml").write_text(DECK)
        run, page = self.folder / "run", self.folder / "run/report.html"
        training = subprocess.Popen([SESTINA, "train", "-i", self.folder / "deck.toml", "-d", run], stdout=subprocess.DEVNULL)
        self.addCleanup(training.kill)
        wait_for(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size > 0)
        watching = subprocess.Popen([SESTINA, "report", "--watch", "--interval", "0.3", run], stdout=subprocess.DEVNULL)
        self.addCleanup(watching.kill)

        def last_step():
            return int(re.search(r"</th><td>(\d+)</td>", page.read_text()).group(1)) if page.exists() else 0
        wait_for(lambda: last_step() > 0)
        first = last_step()
        self.assertIn('"reload":0.3', page.read_text())
        self.assertIn('<span class="badge good">running</span>', page.read_text())
        wait_for(lambda: last_step() > first)
        training.send_signal(signal.SIGTERM)
        training.wait(60)
        self.assertEqual(watching.wait(60), DONE)
        self.assertIn('"reload":0,', page.read_text())
        self.assertNotIn(">running<", page.read_text())

    def test_watch_ends_by_a_signal_with_a_page_that_stays(self):
        runs = make_runs.make(self.folder / "runs")
        with (runs[0] / "lock").open("w") as lock:  # as a run that goes on holds it
            fcntl.flock(lock, fcntl.LOCK_EX)
            watching = subprocess.Popen([SESTINA, "report", "--watch", runs[0]], stdout=subprocess.DEVNULL)
            wait_for(lambda: (runs[0] / "report.html").exists())
            self.assertIn('"reload":5,', (runs[0] / "report.html").read_text())
            watching.send_signal(signal.SIGTERM)
            self.assertEqual(watching.wait(30), DONE)
        self.assertIn('"reload":0,', (runs[0] / "report.html").read_text())


if __name__ == "__main__":
    unittest.main()
