"""Faults 45, 46, 48 and 50 on several ranks."""

import json
import os
import signal
import time
import unittest

from sestina import DIVERGED, KILL, MICRO, STOPPED_SAVED, TERM, UNAVAILABLE
from test_spikes import BACK, SpikeCase, WATCHED


class SpikesOfRanks(SpikeCase):
    def test_45_all_ranks_go_back(self):
        self.spoil(36)
        for grid in (("parallel.dp=2",), ("parallel.dp=1", "parallel.tp=2"), ("parallel.pp=2",)):
            run = grid[-1]
            keys = (*BACK, *MICRO, *grid, "run.steps=45")
            output = self.train_ranks(2, run, *keys)
            self.assertIn("from step 35 to step 30, samples 120 to 143 are left out", output)
            self.assertEqual(sorted(self.losses(run)), list(range(1, 46)))

    def test_45_a_rank_killed_after_a_rollback(self):
        """The ranks that come back go back again, to the bits of ranks that were never killed."""
        self.spoil(136)
        keys = (*BACK, *MICRO, "parallel.dp=2", "run.steps=250", "checkpoint.every=20", "run.abort_timeout=5")
        self.train_ranks(2, "whole", *keys)
        child = self.start_ranks(2, *self.train_arguments("killed", *keys))
        processes = self.rank_processes(child, 2)
        self.wait_for(lambda: self.events("killed", "rollback"), child, 60)
        os.kill(processes[1], KILL)
        self.finish(child)
        self.train_ranks(2, "killed", "-r", "auto", *keys)
        self.assert_same_run("whole", "killed", 250)

    def test_45_computed_again(self):
        self.spoil(36)
        keys = (*WATCHED, *MICRO, "parallel.dp=2", "run.steps=45")
        self.train_ranks(2, "off", *keys)
        self.assertIn("comes out the same", self.train_ranks(2, "again", *keys, "run.on_spike=recompute"))
        self.assert_same_run("off", "again", 45)

    def test_46_the_rank_is_named(self):
        """With a NaN on rank 1: its stage, its micro-batch, its sample."""
        for grid, stage, sample in ((("parallel.dp=2",), 0, 14), (("parallel.dp=1", "parallel.tp=2"), 0, r"\d+"), (("parallel.pp=2",), 1, 12)):
            output = self.train_ranks(2, grid[-1], *MICRO, *grid, environment={"SESTINA_FAULT": "nan:activation:step=4:rank=1"}, expected=DIVERGED)
            self.assertRegex(output, rf"forward pass: output of model\.layers\.\d\.self_attn is nan \(rank 1, stage {stage}, micro-batch 0, "
                                     rf"sample {sample}\)")
            self.assert_one_message(output)
            self.assertEqual(self.first_bad(grid[-1])["rank"], 1)

    def test_46_an_asynchronous_pipeline(self):
        keys = ("parallel.pp=2", *MICRO, "parallel.schedule=async-1f1b")
        output = self.train_ranks(2, "run", *keys, environment={"SESTINA_FAULT": "nan:activation:step=4:rank=1"}, expected=DIVERGED)
        self.assertRegex(output, r"gradients of stages [01, ]+ are not finite")

    def test_48_a_slow_rank(self):
        """A rank that is stopped in its passes for a moment, as one on a busy core is: it is named, with its seconds."""
        child = self.start_ranks(2, *self.train_arguments("run", *MICRO, "parallel.dp=2", "run.steps=1000000", "train.recompute=true"))
        processes = self.rank_processes(child, 2)
        self.wait_for(lambda: self.steps_done("run") >= 20, child)
        for _ in range(40):  # a stop in a wait for the other rank is none of its passes
            os.kill(processes[1], signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(processes[1], signal.SIGCONT)
            time.sleep(0.1)
            if any("rank 1 computes" in line["detail"] for line in self.events("run", "slow_rank")):
                break
        os.kill(processes[0], TERM)
        _, output = self.finish(child, STOPPED_SAVED)
        self.assertRegex(output, r"slow_rank: rank 1 computes [0-9.e+]+ times as long as the median of the ranks: \S+ s of an update, not \S+ s, over 10 updates")

    def test_50_a_slow_machine(self):
        """Next to a record that it has never reached; the record itself is raised to what is reached, and never lowered."""
        cache = {"XDG_CACHE_HOME": str(self.work / "cache")}
        keys = (*MICRO, "parallel.dp=2", "run.steps=3")
        self.train_ranks(2, "first", *keys, "run.check_speed=warn", environment=cache)
        (file,) = (self.work / "cache/sestina/speed").iterdir()
        (before,) = json.loads(file.read_text()).values()
        self.assertTrue(all(before[rate] > 0 for rate in ("fp32_tflops", "memory_gbs", "link_gbs")), before)
        records = json.loads(file.read_text())
        for record in records.values():
            record["memory_gbs"] *= 100
        file.write_text(json.dumps(records))
        output = self.train_ranks(2, "slow", *keys, "run.check_speed=warn", environment=cache)
        self.assertRegex(output, r"rank 1 on \S+: memory \S+ GB/s, [0-9.]+ % of the node's record of")
        self.assertEqual(len([line for line in self.events("slow", "slow_machine") if "memory" in line["detail"]]), 2)
        output = self.train_ranks(2, "stopped", *keys, "run.check_speed=stop", environment=cache, expected=UNAVAILABLE)
        # Which rates are named before the memory's depends on how busy the machine is.
        self.assertRegex(output, r'run\.check_speed = "stop": .*rank 0 on \S+: memory ')
        self.assertEqual(output.count("sestina: error"), 1, output)
        (after,) = json.loads(file.read_text()).values()
        self.assertEqual(after["memory_gbs"], 100 * before["memory_gbs"])
        self.assertEqual(self.losses("first"), self.losses("slow"))


if __name__ == "__main__":
    unittest.main()
