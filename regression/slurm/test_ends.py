"""Jobs that end before their run does: cancelled, preempted, signalled at any moment, and nodes that are lost."""

import os
import pathlib
import shutil
import subprocess
import time

from slurm import main, started
from slurm_case import ENDLESS, MICRO, SlurmCase, fault

EARLY = (fault.STOPPED_SAVED, fault.STOPPED_UNSAVED)


class Stops(SlurmCase):
    def test_scancel(self):
        """A cancelled job saves and stays cancelled."""
        job = self.submit_train("run", ENDLESS, ranks=2)
        self.wait_steps("run", 5, job)
        self.cluster.run("scancel", job)
        state = self.cluster.wait_state(job, "CANCELLED")
        self.assertEqual(state["Restarts"], "0")
        output = self.output(job)
        self.assertIn("stopped by signal TERM", output)
        self.assertIn("the job was cancelled", output)
        self.run_sestina("checkpoint", "verify", self.work / "run", "--full")

    def test_preemption(self):
        """A job of a higher partition takes the nodes; the run saves, is requeued and ends as if nothing had been."""
        self.run_without_end()
        job = self.submit_train("run", ranks=2)
        self.wait_steps("run", 5, job)
        urgent = self.cluster.submit("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true")
        self.assertEqual(self.cluster.wait_end(urgent), fault.DONE)
        state = self.cluster.wait_state(job, "PENDING")
        self.assertEqual(state["Restarts"], "1")
        self.assertIn("stopped by signal TERM", self.output(job))
        steps = self.saved("run") + 10
        self.end_at(steps)
        self.cluster.release(job)
        self.assertIn("resumed", self.wait_end(job, fault.DONE))
        self.assert_whole("run", steps)

    def listening(self):
        """Ranks that catch TERM; before they do, in the first moments of a process, it ends them as any other."""
        count = 0
        for number in started(self.cluster.folder)[1]:
            try:
                status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{number}/status").read_text().splitlines())
                count += status["Name"].strip() == "sestina" and int(status["SigCgt"], 16) >> (fault.TERM - 1) & 1
            except OSError:
                pass
        return count

    def steps_of_signals(self, run, delays, *keys):
        """TERM to both ranks of an srun, each of these delays after they listen; the exit codes."""
        codes = []
        for delay in delays:
            child = subprocess.Popen(["srun", "--job-name=signalled", "--mpi=pmix", "--wait=15", "--nodes=1", "--ntasks=2", "--cpus-per-task=1", "--mem=100", self.sestina,
                                      *map(str, self.train_arguments(run, "-r", "auto", *MICRO, ENDLESS, *keys))],
                                     env=self.cluster.environment, cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.children.append(child)
            self.cluster.wait_for(lambda: self.listening() == 2, "two ranks that listen to TERM")
            delay(child) if callable(delay) else time.sleep(delay)
            self.cluster.run("scancel", "--signal=TERM", "--name=signalled")
            output = child.communicate(timeout=180)[0]
            codes.append(child.returncode)
            self.assertIn(child.returncode, EARLY, output[-2000:])
        return codes

    def test_term_during_start_up(self):
        if fault.STOPPED_SAVED in self.steps_of_signals("run", (0.0, 0.1, 0.2, 0.4)):
            self.run_sestina("checkpoint", "verify", self.work / "run", "--full")

    def test_term_during_a_save(self):
        def saving(child):
            end = time.monotonic() + 20
            while not any((self.work / "run" / "checkpoints").glob("*.tmp-*")) and time.monotonic() < end:
                time.sleep(0.001)
        codes = self.steps_of_signals("run", (saving, saving), "checkpoint.every=3")
        self.assertEqual(codes, [fault.STOPPED_SAVED] * 2)
        self.run_sestina("checkpoint", "verify", self.work / "run", "--full")
        self.assert_nothing_left("run")

    def test_term_during_the_search(self):
        """Three hundred damaged checkpoints lie before the one that is good."""
        self.train("run", *MICRO, "run.steps=2", environment=os.environ | {"OMP_NUM_THREADS": "1"})
        good = self.folder("run", 2)
        for step in range(3, 303):
            shutil.copytree(good, self.folder("run", step))
            (self.folder("run", step) / "shard_00000.h5").write_bytes(b"damaged")
        codes = self.steps_of_signals("run", (0.1, 0.3, 0.5))
        self.assertEqual(self.saved_steps("run")[0], 2)
        self.assertTrue(set(codes) <= set(EARLY))


class LostNodes(SlurmCase):
    # Slurm finds a lost node within half a minute: after node_timeout, a refused message and its next look.
    settings = {"cpus": 4, "node_timeout": 10, "kill_wait": 5}

    def come_back(self, node):
        self.cluster.start_node(node)
        self.cluster.wait_for(lambda: self.cluster.states().get(node) == "idle", f"{node} to be back")

    def test_the_only_node(self):
        """The node of a job dies with all that ran on it: Slurm requeues the job, another node goes on from the checkpoint."""
        keys = ("checkpoint.every=20", "checkpoint.keep=2")
        self.run_without_end()
        job = self.submit_train("run", *keys, ranks=2, options=("--nodelist=n1",))
        self.cluster.wait_for(lambda: len(self.saved_steps("run")) > 0, "a checkpoint")
        self.cluster.kill_node("n1")
        try:
            steps = self.steps_done("run") + 20
            self.end_at(steps)
            self.cluster.wait_for(lambda: self.cluster.job(job).get("Restarts") == "1", "the requeued job")
            self.cluster.run("scontrol", "update", f"JobId={job}", "ReqNodeList=n2")
            self.cluster.release(job)
            output = self.wait_end(job, fault.DONE)
        finally:
            self.come_back("n1")
        self.assertIn("start 2 of at most 50 on n2", output)
        self.assertIn("resumed", output)
        self.assert_whole("run", steps, *keys)

    def test_one_of_two(self):
        """The ranks that are left end within run.abort_timeout, before Slurm knows of the loss; the job fails and says so."""
        job = self.submit_train("run", ENDLESS, "run.abort_timeout=3", ranks=4, nodes=2)
        self.wait_steps("run", 5, job)
        host = self.cluster.job(job)["BatchHost"]
        other = "n2" if host == "n1" else "n1"
        self.cluster.kill_node(other)
        try:
            self.wait_output(job, "not requeued")
        finally:
            self.come_back(other)
        output = self.output(job)
        self.assertEqual(self.cluster.wait_end(job), fault.UNAVAILABLE, output[-2000:])
        self.assertRegex(output, r"waited 3 s .*run\.abort_timeout")
        self.assertIn("failed (exit code 69, see the message above): not requeued", output)


if __name__ == "__main__":
    main()
