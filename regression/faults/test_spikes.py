"""Faults 45 and 46: spikes of the loss, and where a step that is not finite began."""

import json
import random
import unittest

from sestina import BAD_DECK, Case, DIVERGED, KILL, MICRO, STOPPED_SAVED, TERM, text

WINDOW, BATCH = 32, 4
# Windows of the text in order, and a bound of the last 12 updates: an update reads 128 bytes.
WATCHED = ("data.shuffle=false", "run.spike_window=12", "checkpoint.every=10", "checkpoint.keep=0")
BACK = (*WATCHED, "run.on_spike=rollback")


class SpikeCase(Case):
    def spoil(self, *updates):
        """Noise in the place of the text of these updates (from 1)."""
        content = bytearray(text(120000).encode())
        noise = random.Random(5)
        for update in updates:
            begin = (update - 1) * BATCH * WINDOW
            content[begin:begin + BATCH * WINDOW] = bytes(noise.choices(range(33, 127), k=BATCH * WINDOW))
        (self.work / "text.txt").write_bytes(content)

    def events(self, run, what):
        return [line for line in self.lines(run, "event") if line["what"] == what]

    def first_bad(self, run):
        return json.loads((self.work / run / "first_nonfinite.json").read_text())


class Spikes(SpikeCase):
    def test_45_noted(self):
        """A mark, and no other bits."""
        self.spoil(36)
        self.train("off", *WATCHED, "run.steps=50")
        self.assertEqual(self.lines("off", "event"), [])
        self.train("noted", *WATCHED, "run.steps=50", "run.on_spike=note")
        self.assert_same_run("off", "noted", 50)
        self.assertIn("in step 36", self.events("noted", "spike")[0]["detail"])
        self.run_sestina("report", self.work / "noted")
        self.assertTrue('"marks":[{"step":36,"text":"spike: ' in (self.work / "noted/report.html").read_text(), self.lines("noted", "event"))

    def test_45_attention_logits(self):
        """Where optimizer.qk_clip knows them; checkpoints keep what was seen."""
        keys = (*WATCHED, "run.on_spike=note", "run.spike_factor=0.1", "optimizer.qk_clip=1000", *MICRO)
        for run, stages in (("one", ()), ("two", ("parallel.pp=2",))):
            self.train(run, *keys, *stages, "run.steps=40")
            self.assertTrue(any(line["detail"].startswith("attention_logit") for line in self.events(run, "spike")), self.events(run, "spike"))
        seen = [json.loads(self.manifest(self.folder(run, 40))["run"]["extra"])["spikes"] for run in ("one", "two")]
        self.assertEqual(seen[0], seen[1])
        self.assertEqual([len(values) for values in seen[0].values()], [12, 12, 12])
        self.train("clipped", *keys, "optimizer.qk_clip=0.01", "run.steps=40")
        self.assertNotEqual(self.losses("clipped"), self.losses("one"), "the scores reach the clip")

    def test_45_computed_again(self):
        """A spike of the data comes out the same: the update is made, with the bits of a run that does not look."""
        self.spoil(36)
        self.train("off", *WATCHED, "run.steps=50")
        output = self.train("again", *WATCHED, "run.steps=50", "run.on_spike=recompute")
        self.assertIn("step 36 comes out the same", output)
        self.assertIn("step 36 comes out the same", self.events("again", "recompute")[0]["detail"])
        self.assert_same_run("off", "again", 50)

    def test_45_rolled_back(self):
        """The run goes on from step 30 after the samples of updates 31 to 36, as one that never saw them."""
        self.spoil(36)
        output = self.train("run", *BACK, "run.steps=60")
        self.assertIn("from step 35 to step 30, samples 120 to 143 are left out (1 of at most 3)", output)
        self.assertEqual([line["to_step"] for line in self.lines("run", "rewind")], [30])
        state = self.manifest(self.folder("run", 60))["run"]
        self.assertEqual((state["sample"], state["tokens"]), ((60 + 6) * BATCH, 60 * BATCH * WINDOW))
        content = (self.work / "text.txt").read_bytes()
        cut = 30 * BATCH * WINDOW
        self.train("cut", *WATCHED, "run.steps=30")
        (self.work / "text.txt").write_bytes(content[:cut] + content[cut + 6 * BATCH * WINDOW:])
        self.train("cut", *WATCHED, "-r", "auto", "run.steps=60")
        self.assertEqual(self.tensors(self.folder("run", 60)), self.tensors(self.folder("cut", 60)))

    def test_45_killed_after_a_rollback(self):
        """Before the next checkpoint, and after it: the samples stay left out, the bits are those of a run never killed."""
        self.spoil(36, 236)
        keys = (*BACK, "run.steps=400", "checkpoint.every=50")
        self.train("whole", *keys)
        self.assertEqual(len(self.events("whole", "rollback")), 1, "step 36 comes before the first checkpoint")
        for run, signal in (("killed", KILL), ("stopped", TERM)):
            child = self.start(*self.train_arguments(run, *keys))
            self.wait_for(lambda: self.events(run, "rollback"), child, 60)
            child.send_signal(signal)
            self.finish(child, None if signal == KILL else STOPPED_SAVED)
            self.train(run, "-r", "auto", *keys)
            self.assert_same_run("whole", run, 400)

    def test_45_too_many_rollbacks(self):
        self.spoil(36, 37, 38)
        output = self.train("run", *BACK, "run.steps=60", "run.max_rollbacks=0", expected=DIVERGED)
        self.assertIn("after 0 rollbacks (run.max_rollbacks)", output)
        self.assert_one_message(output)
        self.assertEqual(self.saved_steps("run"), [10, 20, 30])
        self.train("run", *BACK, "-r", "auto", "run.steps=60", "run.max_rollbacks=3")  # the key may change

    def test_45_asynchronous_pipelines_cannot_hold_updates_back(self):
        for action in ("recompute", "rollback"):
            output = self.train("run", "-n", f"run.on_spike={action}", "parallel.pp=2", *MICRO, "parallel.schedule=async-1f1b", expected=BAD_DECK)
            self.assertIn("run.on_spike: needs the loss before the update", output)
        self.train("run", "-n", "run.on_spike=note", "parallel.pp=2", *MICRO, "parallel.schedule=async-1f1b")


class FirstBad(SpikeCase):
    def test_46_an_activation(self):
        environment = {"SESTINA_FAULT": "nan:activation:step=4"}
        for keys in ((), ("train.recompute=true",), MICRO, ("parallel.pp=2", *MICRO), ("parallel.pp=2", "parallel.schedule=zb-h1", *MICRO)):
            run = f"run{len(keys)}{keys[-1:]}".replace("/", "")
            output = self.train(run, *keys, environment=environment, expected=DIVERGED)
            self.assertRegex(output, r"in step 4 \(samples 12 to 15\), first in the forward pass: output of model\.layers\.\d\.self_attn is nan "
                                     r"\(rank 0, stage 0, micro-batch 0, sample 12\)")
            self.assert_one_message(output)
            found = self.first_bad(run)
            self.assertEqual((found["step"], found["pass"], found["rank"], found["micro_batch"], found["sample"]), (4, "forward", 0, 0, 12))
            self.assertEqual(len(self.losses(run)), 3)

    def test_46_skipped(self):
        """The step is left out; the search has moved no sample and no bit of the later ones."""
        self.train("run", "run.on_nonfinite=skip", "run.steps=8", environment={"SESTINA_FAULT": "nan:activation:step=4"}, expected=DIVERGED)
        self.assertEqual(len(self.events("run", "skip")), 20, "the fault is of a step, which is tried with the next samples")
        self.assertEqual(sum("model.layers" in line["detail"] for line in self.events("run", "skip")), 1)

    def test_46_weights(self):
        """Weights that overflow are named."""
        output = self.train("run", "schedule.lr=1e300", "schedule.warmup_steps=0", expected=DIVERGED)
        self.assertRegex(output, r"weights written by step 1 are not finite: /model/\S+ holds a value that is not finite")
        self.assertEqual(self.first_bad("run")["step"], 1)

    def test_47_diverges_again_and_again(self):
        """Three starts by -r auto end in the same way: the fourth says so, and does nothing; another deck is another matter."""
        environment = {"SESTINA_FAULT": "nan:activation:step=6"}
        keys = ("checkpoint.every=5", "run.steps=10")
        for _ in range(4):  # the first one is from step 0
            self.train("run", *keys, "-r", "auto", environment=environment, expected=DIVERGED)
        output = self.train("run", *keys, "-r", "auto", environment=environment, expected=DIVERGED)
        self.assertIn("-r auto: the last 3 starts from step 5 with this deck ended in the same way", output)
        self.assert_one_message(output)
        self.assertEqual(len(self.lines("run", "run")), 4)
        self.train("run", *keys, "-r", "auto", "checkpoint.keep=2")

    def test_46_a_fault_that_cannot_be(self):
        self.train("run", environment={"SESTINA_FAULT": "nan:weights:step=4"}, expected=64)


if __name__ == "__main__":
    unittest.main()
