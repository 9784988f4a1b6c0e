"""Sestina inside a program that has ranks of its own: hosted.cpp says what it does with them. Python 3.11, standard library
alone. BUILD_DIR and MPIEXEC come from the surroundings."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

BUILD, MPIEXEC = pathlib.Path(os.environ["BUILD_DIR"]), os.environ["MPIEXEC"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
DECK = f"""
run = {{ name = "hosted", steps = 6, threads = 1, deterministic = true }}
model = {{ family = "llama", hidden_size = 32, intermediate_size = 64, num_hidden_layers = 1, num_attention_heads = 2, vocab_size = 256 }}
data = {{ sequence_length = 32, source = [{{ format = "text", path = "{ROOT}/inputs/README.md" }}] }}
train = {{ global_batch = 4 }}
schedule = {{ kind = "constant", lr = 3e-3 }}
checkpoint = {{ every = 6 }}
metrics = {{ every = 1 }}
"""


def launch(ranks, *words):
    return subprocess.run([MPIEXEC, "-n", str(ranks), *map(str, words)], capture_output=True, text=True, timeout=120)


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}


class Hosted(unittest.TestCase):
    def assert_done(self, done):
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])

    def test_half_of_the_ranks_trains(self):
        """As two ranks train that are launched alone, to the bit, while the other half computes."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            deck = folder / "deck.toml"
            deck.write_text(DECK)
            self.assert_done(launch(4, BUILD / "tests/hosted", "halves", deck, folder / "half"))
            self.assert_done(launch(2, BUILD / "bin/sestina", "train", "-i", deck, "-d", folder / "alone", "parallel.dp=2"))
            self.assertEqual(len(losses(folder / "half")), 6)
            self.assertEqual(losses(folder / "half"), losses(folder / "alone"))

    def test_ranks_are_cut_after_the_start(self):
        self.assert_done(launch(3, BUILD / "tests/hosted", "late"))


if __name__ == "__main__":
    unittest.main()
