"""The whole way of a run through a batch system: submit, time limit, checkpoint, requeue, resume, end."""

from slurm import main
from slurm_case import ENDLESS, SlurmCase, fault


class Chain(SlurmCase):
    def start_with_limit(self):
        """A job that its time limit ends after some steps: (job, limit in seconds). Where a limit leaves no time for one,
        because the machine is slow to start the ranks, twice as much is tried."""
        seconds = 3
        while True:
            self.cluster.limit(seconds)
            job = self.submit_train("run", ranks=2)
            self.wait_output(job, "requeued for start 2", "not requeued")
            if "requeued for start 2" in self.output(job):
                return job, seconds
            self.assertIn("stopped early without a checkpoint (exit code 76)", self.output(job))
            seconds *= 2

    def test_time_limit_requeue_end(self):
        """Two starts end at the time limit, the third at the last step: the bits of a run that was never stopped."""
        self.run_without_end()
        job, seconds = self.start_with_limit()
        self.wait_requeued(job, 2)
        first = self.saved("run")
        self.cluster.limit(seconds + 2)
        self.assertIn("stopped by wall time", self.output(job))
        self.cluster.release(job)
        state = self.wait_requeued(job, 3)
        self.assertEqual(state["Restarts"], "2")
        second = self.saved("run")
        self.assertGreater(second, first)
        self.end_at(second + 20)
        self.cluster.limit(None)
        self.cluster.release(job)
        output = self.wait_end(job, fault.DONE)
        self.assertIn("start 3 of at most 50", output)
        self.assertTrue(output.rstrip().endswith("done"), output[-300:])
        self.assert_whole("run", second + 20)

    def test_other_ranks_at_every_start(self):
        """Jobs of 1, 2 and 4 ranks (these on two nodes) one after the other, each but the last warned by USR1."""
        done = 0
        for ranks, nodes in ((1, 1), (2, 1), (4, 2)):
            last = ranks == 4
            total = done + 10 if last else None
            job = self.submit_train("run", f"run.steps={total}" if last else ENDLESS, ranks=ranks, nodes=nodes,
                                    environment={"SESTINA_MAX_STARTS": "1"})
            if last:
                output = self.wait_end(job, fault.DONE)
            else:
                self.wait_steps("run", done + 5, job)
                self.cluster.run("scancel", "--batch", "--signal=USR1", job)  # as --signal=B:USR1@120 does
                output = self.wait_end(job, fault.STOPPED_SAVED)
                self.assertIn("asking for a checkpoint", output)
                self.assertIn("start 1 was the last that is allowed: not requeued", output)
                done = self.saved("run")
            if ranks > 1:
                self.assertIn(f"{ranks} ranks", output)
        self.assert_whole("run", total)

    def test_signal_before_the_limit(self):
        """--signal of the script's own lines: Slurm looks for it twice a minute."""
        job = self.submit_train("run", ENDLESS, ranks=1, options=("--time=10", "--signal=B:USR1@590"), environment={"SESTINA_MAX_STARTS": "1"})
        output = self.wait_end(job, fault.STOPPED_SAVED)
        self.assertIn("the time limit is near", output)
        self.assertIn("stopped by signal USR1", output)


if __name__ == "__main__":
    main()
