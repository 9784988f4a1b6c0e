"""Every batch script: how it reads, what it starts, and what it says of mistakes."""

import os
import re
import shutil
import subprocess
import unittest

from slurm import main
from slurm_case import MICRO, SCRIPTS, SlurmCase, fault


class Scripts(SlurmCase):
    def test_shellcheck(self):
        if shutil.which("shellcheck") is None:
            self.skipTest("no shellcheck")
        found = subprocess.run(["shellcheck", "-x", *SCRIPTS.glob("*.sh"), *SCRIPTS.glob("*.sbatch")], capture_output=True, text=True, cwd=SCRIPTS)
        self.assertEqual((found.returncode, found.stdout), (0, ""))
        self.assertEqual(len(list(SCRIPTS.glob("*.sbatch"))), 4)

    def test_array(self):
        """Three runs from one file, the second of them wrong; a line that is not there."""
        lines = [f"-i deck.toml -d runs/{i} optimizer.lr={lr}" for i, lr in ((1, "1e-3"), (2, "ten"), (3, "3e-3"))]
        (self.work / "runs.txt").write_text("\n".join(lines) + "\n")
        job = self.submit("array", "runs.txt", options=("--array=1-4", f"--output={self.work}/%a.log"))
        def ended():
            elements = self.cluster.job(job)
            return len(elements) == 4 and all(e["JobState"] in ("COMPLETED", "FAILED") for e in elements.values())
        self.cluster.wait_for(ended, "the array")
        codes = {i: e["ExitCode"] for i, e in self.cluster.job(job).items()}
        self.assertEqual(codes, {"1": "0:0", "2": f"{fault.BAD_DECK}:0", "3": "0:0", "4": f"{fault.INPUT_MISSING}:0"})
        self.assertIn("runs.txt has no line 4", self.output(4))
        for run, lr in (("1", 1e-3), ("3", 3e-3)):
            self.assertEqual(self.steps_done(f"runs/{run}"), 40)
            self.assertIn(f"optimizer.lr={lr:.0e}".replace("e-0", "e-"), self.output(run))

    def test_gpu(self):
        """Two of a node's GPUs for two ranks, which this program without CUDA leaves alone."""
        job = self.submit("train_gpu", "-i", "deck.toml", "-d", "run", *MICRO, ranks=2, options=("--gpus-per-node=2",))
        self.assertIn("2 ranks", self.wait_end(job, fault.DONE))
        self.assertIn("gpu:2", self.cluster.job(job)["TresPerNode"])

    def test_regression(self):
        job = self.submit("regression", os.environ["BUILD"], "-R", "^slurm.installed$|^fault.plan$", options=("--cpus-per-task=2",))
        output = self.wait_end(job, fault.DONE)
        self.assertIn("100% tests passed", output)
        job = self.submit("regression", os.environ["BUILD"], "-R", "no such test")
        self.wait_end(job, 8)  # what ctest says of no test

    def test_wrong_counts(self):
        """One message and its code, at once, without a second start."""
        for ranks, nodes, keys, code, text in ((4, 2, ("parallel.dp=3",), fault.BAD_DECK, "mpirun -n 3"),
                                               (2, 1, ("parallel.tp=4",), fault.BAD_DECK, "a multiple of 4"),
                                               (4, 1, ("train.global_batch=2",), fault.BAD_DECK, ">= 4")):
            with self.subTest(keys):
                job = self.submit_train("run", *keys, ranks=ranks, nodes=nodes)
                output = self.wait_end(job, code)
                self.assertEqual(output.count("sestina: error:"), 1, output)
                self.assertIn(text, output)
                self.assertIn(f"failed (exit code {code}, see the message above): not requeued", output)

    def test_threads_of_a_task(self):
        """Without a word of deck or user a rank takes as many threads as Slurm gave its task cores: three, of a node that
        says it has four."""
        threads = self.cluster.environment.pop("OMP_NUM_THREADS", None)
        self.addCleanup(lambda: threads and self.cluster.environment.update(OMP_NUM_THREADS=threads))
        job = self.submit_train("run", "run.threads=0", "run.steps=2", options=("--cpus-per-task=3",))
        self.assertRegex(self.wait_end(job, fault.DONE), r"device\s+OpenMP, 3 threads")

    def test_tasks_without_pmix(self):
        """Tasks of an srun that gives them no way to find each other: 69, and each would say so."""
        done = subprocess.run(["srun", "--mpi=none", "--ntasks=2", "--nodes=1", self.sestina, *map(str, self.train_arguments("run"))],
                              env=self.cluster.environment, cwd=self.work, capture_output=True, text=True)
        self.assertEqual(done.returncode, fault.UNAVAILABLE, done.stderr)
        self.assertIn("srun --mpi=pmix", done.stderr)
        self.assertFalse((self.work / "run").exists())

    def test_every_size_has_its_arithmetic(self):
        for script in ("train", "train_gpu"):
            text = (SCRIPTS / f"{script}.sbatch").read_text()
            for word in ("Ranks:", "Threads:", "Memory:"):
                self.assertIn(word, text)
            self.assertLess(text.rfind("#SBATCH"), text.find("max_starts="))
            self.assertTrue(re.search(r"--signal=B:USR1@\d+", text))


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one core: no two ranks can have cores of their own")
class Binding(SlurmCase):
    """Ranks get cores of their own; two on one core are found out."""
    settings = {"cpus": 2, "task_plugin": "task/affinity"}

    def run_bound(self, run, binding):
        self.cluster.environment.pop("OMP_NUM_THREADS", None)
        job = self.submit_train(run, "run.threads=0", ranks=2,
                                environment={"SLURM_CPU_BIND": binding} if binding else None)
        return self.wait_end(job, fault.DONE)

    def test_cores_of_their_own(self):
        self.assertNotIn("share", self.run_bound("run", None))

    def test_one_core_for_two(self):
        output = self.run_bound("run", "map_cpu:0,0")
        self.assertEqual(output.count("2 ranks with 2 threads in all share 1 cores of node"), 1, output)


if __name__ == "__main__":
    main()
