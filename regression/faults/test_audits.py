"""Fault 49: bits that flip in gradients, weights and state, under audits (run.audit_every) and without them."""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

from sestina import BAD_DECK, Case, CORRUPTED, DONE, MICRO

STEPS = ("run.steps=8", *MICRO)
AUDITS = ("run.audit_every=1",)
LAYOUTS = ((1, ()), (2, ()), (2, ("parallel.tp=2",)), (2, ("parallel.pp=2",)), (2, ("parallel.pp=2", "parallel.schedule=zb-h1")),
           (2, ("parallel.pp=2", "model.tie_word_embeddings=true")), (3, ("train.global_batch=6",)))


class Audits(Case):
    def launch(self, ranks, run, *keys, fault=None, expected=DONE):
        environment = {"SESTINA_FAULT": fault} if fault else {}
        keys = (*STEPS, *keys)
        return self.train(run, *keys, expected=expected, environment=environment) if ranks == 1 else self.train_ranks(
            ranks, run, *keys, expected=expected, environment=environment)

    def audit_events(self, run):
        return [line["detail"] for line in self.lines(run, "event") if line["what"] == "audit"]

    def test_49_audits_and_a_flip_for_once_change_nothing(self):
        for i, (ranks, keys) in enumerate(LAYOUTS):
            with self.subTest(ranks=ranks, keys=keys):
                self.launch(ranks, f"clean{i}", *keys)
                output = self.launch(ranks, f"flipped{i}", *keys, *AUDITS, fault=f"flip:gradient:step=5:rank={ranks - 1}")
                self.assert_same_run(f"clean{i}", f"flipped{i}", 8)
                events = self.audit_events(f"flipped{i}")
                self.assertEqual(len(events), 1)
                self.assertRegex(events[0], rf"audit of update 5: gradients of model\.\S+ in micro-batch 0 of .* rank {ranks - 1} ")
                self.assertIn("transient", output)

    def test_49_audits_take_the_micro_batches_in_turn(self):
        """The audit of update t looks at micro-batch t - 1 of those of a rank, counted round."""
        for i, (ranks, keys) in enumerate(((1, ()), (2, ()), (2, ("parallel.pp=2", "model.tie_word_embeddings=true")),
                                           (2, ("parallel.shard=gradients",)))):
            with self.subTest(ranks=ranks, keys=keys):
                count = 2 if ranks == 2 and "parallel.pp=2" not in keys else 4
                self.launch(ranks, f"clean{i}", *keys)
                for micro in range(count):
                    self.launch(ranks, f"found{i}-{micro}", *keys, *AUDITS, fault=f"flip:gradient:step={5 + micro}:micro={micro}")
                    self.assert_same_run(f"clean{i}", f"found{i}-{micro}", 8)
                    events = self.audit_events(f"found{i}-{micro}")
                    self.assertEqual(len(events), 1)
                    self.assertIn(f"in micro-batch {micro} of replica 0 ", events[0])
                self.launch(ranks, f"passed{i}", *keys, *AUDITS, fault="flip:gradient:step=5:micro=1:bits=8")
                self.assertEqual(self.audit_events(f"passed{i}"), [])
        # What stays meets what is computed again too, so the first audit finds it whichever micro-batch it looks at.
        output = self.launch(1, "stuck", *AUDITS, fault="flip:gradient:from=5:micro=2", expected=CORRUPTED)
        self.assertIn("audit of update 5: ", output)

    def test_49_without_audits_the_flip_stays(self):
        self.launch(1, "clean")
        self.launch(1, "flipped", fault="flip:gradient:step=5:bits=8")
        self.assertNotEqual(self.tensors(self.folder("clean", 8)), self.tensors(self.folder("flipped", 8)))

    def test_49_a_flip_that_stays_ends_the_run(self):
        for i, (ranks, keys) in enumerate(((1, ()), (2, ()), (2, ("parallel.pp=2",)), (3, ("train.global_batch=6",)))):
            with self.subTest(ranks=ranks, keys=keys):
                output = self.launch(ranks, f"stuck{i}", *keys, *AUDITS, "checkpoint.every=2", fault=f"flip:gradient:from=5:rank={ranks - 1}",
                                     expected=CORRUPTED)
                self.assertRegex(output, rf"persistent\) on rank {ranks - 1} ")
                self.assertIn("the newest checkpoint is of step 4", output)
                self.assert_one_message(output)
                self.assertEqual(self.saved_steps(f"stuck{i}"), [2, 4])
                self.run_sestina("checkpoint", "verify", self.work / f"stuck{i}", "--full")
                self.assertEqual(len(self.audit_events(f"stuck{i}")), 1)

    def first_difference(self, run, output):
        """The file, and what it says by the rules that the message has."""
        found = json.loads((self.work / run / "first_difference.json").read_text())
        self.assertIn(found["text"], output)
        self.assertIn(found["text"], self.audit_events(run)[-1])
        return found

    def test_49_where_a_fault_began_that_stays(self):
        """Passes that are computed again name the flipped activation or gradient, its rank, stage, micro-batch and sample."""
        layouts = ((1, ()), (2, ()), (2, ("parallel.tp=2",)), (2, ("parallel.pp=2",)), (2, ("parallel.pp=2", "parallel.schedule=zb-h1")),
                   (2, ("parallel.pp=2", "model.tie_word_embeddings=true")), (3, ("train.global_batch=6",)))
        for i, (ranks, keys) in enumerate(layouts):
            for what in ("activation", "gradient"):
                rank, run = ranks - 1, f"{what}{i}"
                with self.subTest(ranks=ranks, keys=keys, what=what):
                    output = self.launch(ranks, run, *keys, *AUDITS, fault=f"flip:{what}:from=6:rank={rank}:bits=8:place={i}", expected=CORRUPTED)
                    self.assert_one_message(output)
                    found = self.first_difference(run, output)
                    flipped = re.search(r"SESTINA_FAULT flips bits of the (.*) in update 6", output)[1]
                    place = found["tensor"] if what == "gradient" else f"{found['tensor']} of {found['layer']}"
                    self.assertEqual((place, found["pass"]), (flipped, "backward" if what == "gradient" else "forward"))
                    self.assertIn(f"first different in the {found['pass']} pass: {place} ", output)
                    self.assertEqual((found["rank"], found["stage"], found["step"]), (rank, int("parallel.pp=2" in keys), 6))
                    samples = 6 if ranks == 3 else 4
                    self.assertEqual(found["micro_batch"], 5 % (samples // (ranks if "=2" not in str(keys) else 1)))
                    self.assertTrue(5 * samples <= found["sample"] < 6 * samples, found)

    def test_49_where_a_fault_began_among_samples(self):
        """Rows of a micro-batch are told apart in activations; the gradient of a weight is one of all of them."""
        keys = ("train.micro_batch=2", "run.steps=8", *AUDITS)
        for what, samples in (("activation", 1), ("gradient", 2)):
            output = self.train_ranks(2, what, *keys, expected=CORRUPTED, environment={"SESTINA_FAULT": f"flip:{what}:from=5:rank=1:bits=8"})
            found = self.first_difference(what, output)
            first, last = found["samples"]
            self.assertEqual(last - first + 1, samples)
            self.assertTrue(16 <= first <= last < 20, found)
            self.assertEqual(found["sample"], first if samples == 1 else None)

    def test_49_where_a_fault_began_that_has_passed(self):
        """Passes that are computed again agree; the message says so, with the first wrong gradient in the order of the backward pass."""
        for i, (ranks, keys) in enumerate(((1, ()), (2, ()), (2, ("parallel.pp=2",)))):
            self.launch(ranks, f"clean{i}", *keys)
            for what in ("activation", "gradient"):
                run = f"{what}{i}"
                with self.subTest(ranks=ranks, keys=keys, what=what):
                    output = self.launch(ranks, run, *keys, *AUDITS, fault=f"flip:{what}:step=6:rank={ranks - 1}:bits=8")
                    self.assert_same_run(f"clean{i}", run, 8)
                    self.assertRegex(output, r"computed again with digests between layers, agree: the fault has passed")
                    found = self.first_difference(run, output)
                    self.assertEqual((found["pass"], found["comes_again"], found["rank"]), ("backward", False, ranks - 1))
                    self.assertIn(f"gradients of {found['tensor'].removeprefix('gradient of ')}", output)

    def test_49_a_run_that_is_to_stop_stops(self):
        output = self.launch(1, "run", *AUDITS, "run.on_audit=stop", fault="flip:gradient:step=5", expected=CORRUPTED)
        self.assertIn("transient", output)
        self.assert_one_message(output)

    def test_49_replicas_with_different_weights(self):
        for i, (keys, what) in enumerate(((("optimizer.kind=muon", "train.precision=bf16"), "weight"),
                                          (("optimizer.kind=soap", "parallel.partition=replicated"), "basis"))):
            with self.subTest(keys=keys, what=what):
                output = self.launch(2, f"apart{i}", *keys, *AUDITS, fault=f"flip:{what}:step=5:rank=1", expected=CORRUPTED)
                self.assertRegex(output, r"audit of update \d: /\S+.*, which ranks keep the same, differs? on rank 0 .*, rank 1 ")
                self.assert_one_message(output)
        output = self.launch(2, "shards", "parallel.tp=2", *AUDITS, fault="flip:weight:step=5:rank=1:place=2", expected=CORRUPTED)  # of a norm
        self.assertRegex(output, r"layernorm.weight.*, which ranks keep the same, differ on rank 0 .*, rank 1 ")
        output = self.launch(3, "third", "train.global_batch=6", *AUDITS, fault="flip:weight:step=5:rank=1", expected=CORRUPTED)
        self.assertRegex(output, r"audit of update 5: /weights/\S+.* on rank 1 \([^)]*\);")

    def test_49_a_resume_through_audits(self):
        self.launch(2, "whole", "optimizer.kind=soap")
        self.train_ranks(2, "parts", *MICRO, "run.steps=3", "optimizer.kind=soap", "run.audit_every=2")
        self.train_ranks(2, "parts", "-r", "auto", *MICRO, "run.steps=8", "optimizer.kind=soap", "run.audit_every=3",
                         environment={"SESTINA_FAULT": "flip:gradient:step=6:rank=0"})
        self.assert_same_run("whole", "parts", 8)
        self.assertEqual(len(self.audit_events("parts")), 1)

    def test_49_a_copy_for_a_checkpoint(self):
        output = self.launch(1, "run", "checkpoint.every=4", fault="flip:checkpoint:step=4")
        self.assertRegex(output, r"NOT saved: /\S+: its copy in memory changed before it was written")
        self.assertEqual(self.saved_steps("run"), [8])

    def test_49_some_flips_of_every_sort(self):
        """Few of those of regression/attack/flips.py."""
        tool = pathlib.Path(__file__).resolve().parent.parent / "attack/flips.py"
        done = subprocess.run([sys.executable, "-B", tool, "--sestina", self.sestina, "--mpiexec", os.environ["MPIEXEC"], "--flips", "12",
                               "--clean", "80"], capture_output=True, text=True, timeout=280)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("| all | | | 12 |", done.stdout)

    def test_49_what_cannot_be_audited(self):
        for keys, why in ((("run.deterministic=false",), "run.deterministic"), (("parallel.pp=2", "parallel.schedule=async-1f1b"), "async-1f1b")):
            output = self.train("refused", *STEPS, *AUDITS, *keys, expected=BAD_DECK)
            self.assertIn("run.audit_every", output)
            self.assertIn(why, output)
            self.assert_one_message(output)
            self.assertFalse(os.path.exists(self.work / "refused"))


if __name__ == "__main__":
    unittest.main()
