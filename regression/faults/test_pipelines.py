"""Faults 1, 2, 4, 13 and 15 in pipelines: stages that die, hang or are stopped with micro-batches in flight."""

import os
import random
import signal
import unittest

from sestina import BAD_DATA, Case, DONE, KILL, MICRO, STOPPED_SAVED, TERM

STAGES = ("parallel.pp=2", *MICRO)
ASYNC = (*STAGES, "parallel.schedule=async-1f1b")


class Pipelines(Case):
    def test_01_a_stage_killed(self):
        for i, keys in enumerate((STAGES, ASYNC, (*ASYNC, "parallel.stash=recompute"))):
            keys = (*keys, "run.steps=300", "checkpoint.every=20", "run.abort_timeout=5")
            self.train(f"whole{i}", *keys)
            child = self.start_ranks(2, *self.train_arguments(f"killed{i}", *keys))
            processes = self.rank_processes(child, 2)
            self.wait_for(lambda: self.saved_steps(f"killed{i}"), child)
            lost = random.randrange(2)
            os.kill(processes[lost], KILL)
            _, output = self.finish(child)
            self.assertRegex(output, rf"rank {lost} .*signal 9")
            self.train_ranks(2, f"killed{i}", "-r", "auto", *keys)
            self.assert_same_run(f"whole{i}", f"killed{i}", 300)

    def test_01_a_stage_that_hangs(self):
        child = self.start_ranks(2, *self.train_arguments("run", *ASYNC, "run.steps=100000", "run.abort_timeout=2"))
        processes = self.rank_processes(child, 2)
        self.wait_for(lambda: self.steps_done("run") >= 20, child)
        os.kill(processes[1], signal.SIGSTOP)
        code, output = self.finish(child)
        self.assertNotEqual(code, DONE)
        self.assertIn("rank 1", output)

    def test_02_term_with_micro_batches_in_flight(self):
        for i, stash in enumerate(("on", "recompute", "saved")):
            keys = (*ASYNC, f"parallel.stash={stash}", "run.steps=200")
            self.train(f"whole{i}", *keys)
            child = self.start_ranks(2, *self.train_arguments(f"stopped{i}", *keys))
            processes = self.rank_processes(child, 2)
            self.wait_for(lambda: self.steps_done(f"stopped{i}") >= 20, child)
            os.kill(processes[i % 2], TERM)
            self.finish(child, STOPPED_SAVED)
            self.run_sestina("checkpoint", "verify", self.work / f"stopped{i}", "--full")
            self.train(f"stopped{i}", "-r", "auto", *keys)  # in one process
            self.assert_same_run(f"whole{i}", f"stopped{i}", 200)

    def test_13_delays_that_a_resume_would_change(self):
        self.train("run", *ASYNC, "run.steps=5")
        for key in ("parallel.delay_scale=2", "parallel.stash=saved", "parallel.schedule=1f1b", "train.micro_batch=2",
                    "parallel.delay_correction=prediction", "parallel.clip_scope=group"):
            output = self.train("run", "-r", "auto", *ASYNC, "run.steps=9", key, expected=BAD_DATA)
            self.assertIn(key.split("=")[0], output)
            self.assert_one_message(output)
        self.train("fork", "-r", str(self.work / "run"), *ASYNC, "run.steps=9", "parallel.delay_scale=2")
        self.train("run", "-r", "auto", *ASYNC, "run.steps=9")

    def test_15_another_number_of_stages_starts_empty(self):
        self.train("run", *ASYNC, "run.steps=5")
        output = self.train("run", "-r", "auto", *ASYNC, "run.steps=9", "parallel.pp=1")
        self.assertIn("belongs to another one", output)
        self.assertEqual(len(self.losses("run")), 9)


if __name__ == "__main__":
    unittest.main()
