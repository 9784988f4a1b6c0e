#!/usr/bin/env python3
"""What gpu.py makes of runs that are known, and its comparisons of this machine's host with itself."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import gpu

HERE = pathlib.Path(__file__).resolve().parent


class KnownRuns(gpu.Runner):
    """Runs whose losses come from a function of space, options and update."""

    def __init__(self, work, loss):
        super().__init__("sestina", True, pathlib.Path(work))
        self.loss = loss

    def train(self, name, deck, *options, space=None, steps=gpu.UPDATES, prefix=(), resume=False):
        folder = self.work / name
        folder.mkdir(exist_ok=True)
        with open(folder / "metrics.jsonl", "w") as file:
            for step in range(1, steps + 1):
                line = {"kind": "train", "step": step, "loss": self.loss(name, space or "device", options, step)}
                file.write(json.dumps(line) + "\n")
        return folder


class Judged(unittest.TestCase):
    def judge(self, case, loss, digests=lambda checkpoint: {}):
        with tempfile.TemporaryDirectory() as work, mock.patch.object(gpu.run_case, "tensor_digests", digests):
            case(KnownRuns(work, loss))

    def test_curves_may_be_apart_by_roundings_alone(self):
        apart = {"fp32": 1e-3, "bf16": 2e-2}

        def loss(name, space, options, step):
            far = apart[options[0].split("=")[1]]
            return 3.0 + (far * 3 if space == "device" and step == 7 else 0)

        self.judge(gpu.losses, loss)
        apart["bf16"] = 4e-2
        with self.assertRaisesRegex(gpu.Failure, "tiny_llama in bf16"):
            self.judge(gpu.losses, loss)

    def test_a_loss_that_is_no_number_is_found(self):
        with self.assertRaisesRegex(gpu.Failure, "tiny_llama in fp32"):
            self.judge(gpu.losses, lambda name, space, options, step: float("nan") if space == "device" and step == 12 else 3.0)

    def test_bits_are_those_of_losses_and_of_weights(self):
        self.judge(gpu.bits, lambda name, space, options, step: 3.0)
        with self.assertRaisesRegex(gpu.Failure, "two runs have different bits"):
            self.judge(gpu.bits, lambda name, space, options, step: 3.0 + (name == "again") * 1e-7)
        with self.assertRaisesRegex(gpu.Failure, "interrupted"):
            self.judge(gpu.bits, lambda name, space, options, step: 3.0, lambda checkpoint: {"w": checkpoint.parts[-3] == "stopped"})
        with self.assertRaisesRegex(gpu.Failure, "recorded passes"):
            self.judge(gpu.bits, lambda name, space, options, step: 3.0 + ("train.graphs=true" in options))


class OnThisHost(unittest.TestCase):
    def run_case(self, *words):
        command = [sys.executable, "-B", HERE / "gpu.py", "--program", os.environ["SESTINA"], *words]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_a_host_has_its_own_losses(self):
        said = self.run_case("--host", "--decks", "tiny_graphs", "--", "losses")
        self.assertEqual(said.count("12 losses"), 2, said)

    def test_a_host_has_its_own_bits(self):
        said = self.run_case("--host", "--decks", "tiny_graphs", "--", "bits")
        self.assertIn("tiny_graphs: the bits of passes and updates that are recorded", said)


if __name__ == "__main__":
    unittest.main()
