"""Faults 22 and 25: losses that are not finite, and run directories and surroundings that are not as they should be."""

import json
import struct
import time
import unittest

from sestina import (BAD_DATA, BAD_DECK, CANNOT_CREATE, Case, DIVERGED, DONE, INPUT_MISSING, STOPPED_SAVED, TERM, UNAVAILABLE, USAGE)


class NotFinite(Case):
    def test_22_stop(self):
        """A learning rate beyond all measure: the run stops before it applies an update that is not finite."""
        output = self.train("run", "schedule.lr=1e30", "schedule.warmup_steps=0", "checkpoint.every=1", "checkpoint.keep=0", expected=DIVERGED)
        self.assertIn("not finite", output)
        self.assertNotIn("-nan", output)
        for step in self.saved_steps("run"):
            self.assertIsNotNone(self.manifest(self.folder("run", step))["run"]["loss"])
        self.assertTrue(any(line["step"] < 10 for line in self.lines("run", "event")))

    def test_22_skip(self):
        """Skipping has an end when every gradient is bad."""
        output = self.train("run", "schedule.lr=1e30", "schedule.warmup_steps=0", "run.on_nonfinite=skip", expected=DIVERGED)
        self.assertIn("skipped", output)
        self.assertGreater(len([line for line in self.lines("run", "event") if line.get("what", line.get("event")) == "skip"]), 3)

    def test_22_bad_weights(self):
        """Imported weights that hold a NaN: the very first update is refused."""
        folder = self.work / "hf"
        self.train("good", "run.steps=1")
        self.run_sestina("checkpoint", "export", self.folder("good", 1), "-o", folder)
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        begin, end = json.loads(data[8:8 + size])["model.layers.0.mlp.up_proj.weight"]["data_offsets"]
        data[8 + size + begin:8 + size + end] = struct.pack("<f", float("nan")) * ((end - begin) // 4)
        path.write_bytes(data)
        self.run_sestina("checkpoint", "import", folder, "-d", self.work / "bad", "-i", self.deck)
        self.train("bad", "-r", "auto", "optimizer.on_missing=reset", expected=DIVERGED)
        self.assertEqual(self.saved_steps("bad"), [0])


class Surroundings(Case):
    def test_25_two_jobs_in_one_directory(self):
        child = self.start(*self.train_arguments("run", "run.steps=1000000"))
        self.wait_for(lambda: self.steps_done("run") > 0, child)
        output = self.train("run", "-r", "auto", "run.steps=1000000", expected=CANNOT_CREATE)
        self.assertIn(str(child.pid), output)
        child.send_signal(TERM)
        self.finish(child, STOPPED_SAVED)

    def test_25_lock_of_a_dead_job(self):
        child = self.start(*self.train_arguments("run", "run.steps=1000000", "checkpoint.every=20"))
        self.wait_for(lambda: self.saved_steps("run"), child)
        child.kill()
        self.finish(child)
        self.train("run", "-r", "auto", f"run.steps={self.saved_steps('run')[-1] + 10}")

    def test_25_directory_that_cannot_be_made(self):
        for place in ("text.txt/run", "/proc/sestina-run"):
            output = self.run_sestina("train", "-i", self.deck, "-d", place, expected=CANNOT_CREATE)
            self.assertIn(place, output)

    def test_25_no_home(self):
        nothing = dict.fromkeys(("HOME", "USER", "TMPDIR", "LANG", "XDG_CACHE_HOME"))
        self.train("run", "run.steps=2", environment=nothing)

    def test_25_started_as_singletons(self):
        """Four tasks of one job of which each believes to be alone would write the same files."""
        output = self.train("run", "run.steps=2", environment={"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_JOB_ID": "5"}, expected=UNAVAILABLE)
        self.assertIn("srun", output)

    def test_25_fresh_start_over_checkpoints(self):
        self.train("run", "run.steps=2")
        before = self.tensors(self.folder("run", 2))
        self.assertIn("-r auto", self.train("run", "run.steps=3", expected=CANNOT_CREATE))
        self.assertEqual(self.tensors(self.folder("run", 2)), before)

    def test_25_a_resume_that_changes_the_model(self):
        self.train("run", "run.steps=2")
        output = self.train("run", "-r", "auto", "run.steps=3", "model.hidden_size=64", expected=BAD_DATA)
        self.assertIn("hidden_size", output)

    def test_exit_codes_of_the_command_line(self):
        self.run_sestina("no-such-verb", expected=USAGE)
        self.run_sestina("train", "--no-such-option", expected=USAGE)
        self.run_sestina("train", expected=USAGE)
        self.run_sestina("train", "-i", self.work / "none.toml", expected=INPUT_MISSING)
        self.run_sestina("train", "-i", self.deck, "nosuch.key=1", expected=BAD_DECK)
        self.run_sestina("-h", expected=DONE)
        self.run_sestina("-V", expected=DONE)

    def test_starts_quickly(self):
        """The first update of a tiny model comes within half a second; here with room for a busy machine."""
        begin = time.monotonic()
        self.train("run", "run.steps=1")
        self.assertLess(time.monotonic() - begin, 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
