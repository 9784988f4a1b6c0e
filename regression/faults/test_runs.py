"""Faults 22 and 25: losses that are not finite, and run directories and surroundings that are not as they should be."""

import json
import shutil
import struct
import time
import unittest

from sestina import (BAD_DATA, BAD_DECK, CANNOT_CREATE, Case, DIVERGED, DONE, HUP, INPUT_MISSING, IO_ERROR, STOPPED_SAVED, TERM, UNAVAILABLE, USAGE,
                     flip_bit, poison)


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
        data_keys = ('data.validation=[{path="text.txt"}]', "data.sequence_length=32")
        for command in (("checkpoint", "import", folder, "-d", self.work / "bad", "-i", self.deck), ("eval", "--hf", folder, *data_keys),
                        ("generate", "--hf", folder, "--prompt", "the")):
            self.assertIn("layers.0.mlp.up_proj.weight holds", self.run_sestina(*command, expected=BAD_DATA))
        deck = self.deck.read_text()
        self.deck.write_text(deck[:deck.index("[model]")] + f'[model]\nfrom_hf = "{folder}"\n' + deck[deck.index("[data]"):])
        self.assertIn("layers.0.mlp.up_proj.weight holds", self.train("from_hf", expected=BAD_DATA))
        self.assertFalse(list((self.work / "bad").glob("checkpoints/step_*")) + list((self.work / "from_hf").glob("checkpoints/step_*")))

    def test_22_weights_that_overflow(self):
        """The update itself writes infinities: seen with the next sums, and before anything is saved, whoever updates what."""
        beyond = ("schedule.lr=1e300", "schedule.warmup_steps=0", "checkpoint.every=5")
        for ranks, grid in ((1, ()), (2, ("parallel.dp=2",)), (2, ("parallel.dp=1", "parallel.tp=2"))):
            for kind in ("adamw", "muon"):
                for more in (("run.steps=1",), ("run.steps=9", "run.on_nonfinite=skip")):
                    run = f"run-{kind}-{ranks}-{len(grid)}-{len(more)}"
                    train = self.train if ranks == 1 else lambda *a, **o: self.train_ranks(ranks, *a, **o)
                    output = train(run, f"optimizer.kind={kind}", *beyond, *grid, *more, expected=DIVERGED)
                    self.assertIn("not finite", output)
                    self.assertIn("no checkpoint was saved", output)
                    self.assertEqual(self.saved_steps(run), [])
                    self.assertEqual(self.lines(run, "event")[-1]["what"], "diverged")
                    self.assertLessEqual(len(self.lines(run, "train")), 1)

    def test_22_older_checkpoints_stay(self):
        """A snapshot with a value that is not finite is refused; what was saved before stays."""
        self.train("run", "run.steps=3")
        self.train("spoilt", "-r", self.folder("run", 3), "run.steps=4", "schedule.lr=1e300", "schedule.warmup_steps=0", expected=DIVERGED)
        self.assertEqual(self.saved_steps("spoilt"), [])
        self.assertEqual(self.saved_steps("run"), [3])

    def test_22_checkpoints_that_are_not_finite(self):
        """Such as an older program may have left: 79 where the weights are used, 65 for a resume, passed over by -r auto."""
        self.train("run", "run.steps=6", "checkpoint.every=3", "metrics.eval_every=3", 'data.validation=[{path="text.txt"}]')
        tensor = poison(self.folder("run", 6), "layers.1.mlp.up_proj.weight")
        self.assertTrue(tensor.startswith("/model/"))
        self.run_sestina("checkpoint", "verify", self.folder("run", 6), "--full")  # it is not damaged
        for command in (("eval", "-r", self.folder("run", 6)), ("generate", "-r", self.folder("run", 6), "--prompt", "the")):
            self.assertIn(tensor, self.run_sestina(*command, expected=DIVERGED))
        self.assertIn(tensor, self.train("run", "-r", self.folder("run", 6), "run.steps=7", expected=BAD_DATA))
        output = self.train("run", "-r", "auto", "run.steps=7")
        self.assertIn(tensor, output)
        self.assertEqual(self.lines("run", "rewind")[-1]["step"], 3)
        self.assertIn(tensor, (self.work / "run/log.txt").read_text())  # though there was no log yet
        state = poison(self.folder("run", 7), "/optimizer/")
        self.assertIn(state, self.train("run", "-r", self.folder("run", 7), "run.steps=8", expected=BAD_DATA))

    def test_22_divisors_of_zero(self):
        for kind, key in (("adamw", "eps"), ("muon", "scalar.eps"), ("muon", "ns_eps"), ("soap", "eps"), ("shampoo", "graft_eps")):
            for value in ("0", "1e-60"):
                output = self.train("run", f"optimizer.kind={kind}", f"optimizer.{key}={value}", expected=BAD_DECK)
                self.assertIn(f"optimizer.{key}", output)

    def test_22_a_skipped_step_is_seen_to_once(self):
        """Weights of 1e30 are finite, no loss is: every later step is skipped, and step 1 is evaluated and saved once."""
        keys = ("schedule.lr=1e30", "schedule.warmup_steps=0", "run.on_nonfinite=skip", "checkpoint.every=1", "metrics.eval_every=1",
                'data.validation=[{path="text.txt"}]')
        self.train("run", *keys, expected=DIVERGED)
        self.assertEqual([line["step"] for line in self.lines("run", "val")], [1])
        self.assertEqual([line["step"] for line in self.lines("run", "checkpoint")], [1])


class Surroundings(Case):
    def test_25_two_jobs_in_one_directory(self):
        child = self.start(*self.train_arguments("run", "run.steps=1000000"))
        self.wait_for(lambda: self.steps_done("run") > 0, child)
        output = self.train("run", "-r", "auto", "run.steps=1000000", expected=CANNOT_CREATE)
        self.assertIn(str(child.pid), output)
        child.send_signal(TERM)
        self.finish(child, STOPPED_SAVED)

    def test_25_run_directory_moved_away(self):
        """Noticed at the next save, which does not happen: 74. No second run gets in meanwhile."""
        def lock():
            (self.work / "lock/lock").unlink()
            self.assertIn("another run", self.train("lock", "-r", "auto", expected=CANNOT_CREATE))
        def metrics():
            (self.work / "metrics/metrics.jsonl").rename(self.work / "metrics/old")
        def folder():
            (self.work / "folder").rename(self.work / "elsewhere")
        def removed():
            shutil.rmtree(self.work / "removed")
        for name, harm in (("lock", lock), ("metrics", metrics), ("folder", folder), ("removed", removed)):
            with self.subTest(name):
                child = self.start(*self.train_arguments(name, "run.steps=1000000", "checkpoint.every=1000000"))
                self.wait_for(lambda: self.steps_done(name) > 0, child)
                harm()
                child.send_signal(HUP)
                output = self.finish(child, IO_ERROR)[1]
                self.assertRegex(output, "(removed or renamed|replaced by another file)")
                self.assertFalse(list(self.work.glob("*/checkpoints/step_*")))

    def test_25_retention_and_damage(self):
        """A checkpoint that is damaged, but of the right size, is newer than the one that the run goes on from: that one stays."""
        self.train("run", "run.steps=40", "checkpoint.every=20", "checkpoint.keep=2")
        flip_bit(self.folder("run", 40) / "shard_00000.h5", 9000)
        self.train("run", "-r", "auto", "run.steps=25", "checkpoint.keep=2")
        self.assertEqual(self.saved_steps("run"), [20, 25])
        log = (self.work / "run/log.txt").read_text()
        self.assertIn("checkpoint of step 40 is not used", log)
        self.train("run", "-r", "auto", "run.steps=26", "checkpoint.keep=2")
        self.assertEqual(self.saved_steps("run"), [25, 26])

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
