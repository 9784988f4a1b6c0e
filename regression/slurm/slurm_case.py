"""What the Slurm tests share: a fault test's folder, deck and looks into a run, with a Slurm of their own next to it."""

import os
import pathlib
import re
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
import sestina as fault  # noqa: E402
from slurm import Slurm, why_missing  # noqa: E402

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "app" / "slurm"
MICRO = ("train.micro_batch=1",)  # as many micro-batches as sequences: the ranks' parts are aligned, so no bit depends on their number
ENDLESS = "run.steps=1000000000"


class SlurmCase(fault.Case):
    settings = {"cpus": 4}  # of the class's Slurm

    @classmethod
    def setUpClass(cls):
        if why_missing():
            cls.cluster = None
            return
        cls.cluster = Slurm(nodes=2, **cls.settings)
        cls.addClassCleanup(cls.cluster.stop)
        binding = {"OMPI_MCA_hwloc_base_binding_policy", "OMPI_MCA_rmaps_base_oversubscribe"}
        cls.cluster.environment |= {key: value for key, value in fault.MPI_SURROUNDINGS.items() if key not in binding}
        cls.cluster.environment |= {"SESTINA": str(pathlib.Path(os.environ["SESTINA"]).resolve()), "SESTINA_SLURM": str(SCRIPTS)}

    def setUp(self):
        """Steps of sixteen sequences: ranks that share a loaded machine wait for each other a few times in each step."""
        super().setUp()
        self.deck.write_text(self.deck.read_text().replace("global_batch = 4", "global_batch = 16"))

    def run(self, result=None):
        """A test that fails shows what the daemons said during it."""
        test = getattr(self, self._testMethodName)

        def with_logs():
            sizes = self.cluster.log_sizes()
            try:
                test()
            except unittest.SkipTest:
                raise
            except Exception as error:
                error.add_note(self.cluster.logs(sizes))
                raise
        with_logs.__doc__ = test.__doc__
        setattr(self, self._testMethodName, with_logs)
        return super().run(result)

    def tearDown(self):
        self.cluster.empty()
        super().tearDown()

    def submit(self, script, *arguments, options=(), ranks=1, nodes=1, environment=None):
        """Submits app/slurm/<script>.sbatch; returns the number of the job, whose output goes to <number>.log."""
        path = SCRIPTS / f"{script}.sbatch"
        memory = "--mem-per-cpu=100" if "--mem-per-cpu" in path.read_text() else "--mem=100"  # not both
        sizes = (f"--nodes={nodes}", f"--ntasks-per-node={ranks // nodes}", "--cpus-per-task=1", memory, "--time=10")
        return self.cluster.submit(*sizes, f"--output={self.work}/%j.log", *options, path, *arguments, cwd=self.work, environment=environment)

    def submit_train(self, run, *keys, **options):
        return self.submit("train", "-i", "deck.toml", "-d", run, *MICRO, *keys, **options)

    def run_without_end(self):
        """The deck's total is out of reach until end_at(): a resumed run reads it again."""
        self.end_at(10**9)

    def end_at(self, steps):
        self.deck.write_text(re.sub(r"^steps = \d+$", f"steps = {steps}", self.deck.read_text(), count=1, flags=re.MULTILINE))

    def output(self, job):
        path = self.work / f"{job}.log"
        return path.read_text() if path.exists() else ""

    def wait_output(self, job, *texts):
        self.cluster.wait_for(lambda: any(text in self.output(job) for text in texts),
                              lambda: f"{' or '.join(map(repr, texts))} in the output of job {job}:\n{self.output(job)[-3000:]}")

    def wait_steps(self, run, steps, job):
        self.cluster.wait_for(lambda: self.steps_done(run) >= steps, lambda: f"step {steps} of job {job}:\n{self.output(job)[-3000:]}")

    def wait_end(self, job, expected):
        code = self.cluster.wait_end(job)
        self.assertEqual(code, expected, self.output(job)[-3000:])
        return self.output(job)

    def wait_requeued(self, job, starts):
        """Until the job stopped with a checkpoint and waits for this start."""
        self.wait_output(job, f"requeued for start {starts}")
        return self.cluster.wait_state(job, "PENDING")

    def saved(self, run):
        return self.saved_steps(run)[-1]

    def assert_whole(self, run, steps, *keys):
        """The run equals one of one process that nothing interrupted, outside Slurm: all losses, all weights and state."""
        self.finish(self.start(*self.train_arguments("whole", *MICRO, f"run.steps={steps}", *keys)), fault.DONE, 400)
        for name in (run, "whole"):
            self.run_sestina("checkpoint", "convert", self.folder(name, steps), "-o", self.work / f"{name}-one")
        self.assertEqual(self.tensors(self.folder("whole-one", steps)), self.tensors(self.folder(f"{run}-one", steps)))
        self.assertEqual(self.losses("whole"), self.losses(run))
        shutil.rmtree(self.work / "whole")

