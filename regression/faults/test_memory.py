"""Fault 31: memory that the system refuses, at the start, in training and in a save, by limits of the process (ulimit -v);
fault 51: memory that is not zero when it comes."""

import os
import re
import resource
import shutil
import signal
import subprocess

from sestina import Case, DONE, MPI_SURROUNDINGS, UNAVAILABLE

WIDE = ("model.hidden_size=512", "model.intermediate_size=1536", "model.num_hidden_layers=8")  # 100 MB of weights alone
ENDLESS = ("run.steps=1000000", "checkpoint.every=1000000", "metrics.every=1")


class Memory(Case):
    def limited(self, kilobytes, *arguments, expected):
        """With so many kB of addresses (ulimit -v), on one thread of every library."""
        before = lambda: resource.setrlimit(resource.RLIMIT_AS, (kilobytes * 1024, kilobytes * 1024))
        child = subprocess.run([self.sestina, *map(str, arguments)], cwd=self.work, text=True, errors="replace", timeout=60,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=before,
                               env=dict(os.environ) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_PROC_BIND": "false"})
        self.assertIn(child.returncode, expected, child.stdout[-2000:])
        if child.returncode == UNAVAILABLE:
            self.assert_one_message(child.stdout)
            self.assertIn("ulimit -v", child.stdout)
        return child

    def test_31_any_limit(self):
        """Either the run is well or it ends with 69 and one message, however little there is; below all of it stands what the
        libraries take before the program begins."""
        codes = []
        for kilobytes in range(130000, 900000, 60000):
            shutil.rmtree(self.work / "run", ignore_errors=True)
            child = self.limited(kilobytes, *self.train_arguments("run", "run.steps=3", "checkpoint.every=1"), expected=(DONE, UNAVAILABLE))
            codes.append(child.returncode)
        self.assertEqual(codes, sorted(codes, reverse=True), "more is never worse")
        self.assertEqual([codes[0], codes[-1]], [UNAVAILABLE, DONE])
        checkpoint = self.folder("run", 3)
        for kilobytes in range(270000, 700000, 80000):
            self.limited(kilobytes, "eval", "-r", checkpoint, "-i", "deck.toml", 'data.validation=[{path="text.txt"}]', "metrics.eval_batches=1",
                         expected=(DONE, UNAVAILABLE))

    def test_31_a_run_that_needs_more(self):
        """Said with numbers before anything is allocated; every rank's limit is its own."""
        child = self.limited(700000, *self.train_arguments("run", *WIDE, *ENDLESS), expected=(UNAVAILABLE,))
        self.assertRegex(child.stdout, r"needs [\d.]+ GB of memory, this process \(ulimit -v\) has [\d.]+ [GM]B available")

    def test_31_several_ranks(self):
        if "MPIEXEC" not in os.environ or not shutil.which(os.environ["MPIEXEC"]):
            self.skipTest("no launcher of ranks")
        script = 'ulimit -v 900000; exec "$@"'
        words = [os.environ["MPIEXEC"], "-n", "2", "bash", "-c", script, "--", self.sestina, *self.train_arguments("run", *WIDE, *ENDLESS)]
        done = subprocess.run(list(map(str, words)), cwd=self.work, capture_output=True, text=True, timeout=120,
                              env=dict(os.environ) | MPI_SURROUNDINGS | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, UNAVAILABLE, done.stdout + done.stderr)
        self.assertIn("ulimit -v", done.stdout + done.stderr)

    def test_51_memory_that_is_not_zero(self):
        """The C library fills what it hands out: nothing of it reaches weights, state, activations in flight or losses."""
        saved = ("parallel.pp=2", "parallel.schedule=async-1f1b", "parallel.stash=saved", "train.micro_batch=1")
        odd = ("train.precision=bf16", "model.intermediate_size=61", "train.recompute=true")
        for i, keys in enumerate((saved, (*saved, *odd[:2], "optimizer.kind=muon"), (*odd, "optimizer.kind=soap"), ("optimizer.kind=shampoo",),
                                  ("optimizer.kind=kl-soap", "optimizer.refresh.mode=async", "optimizer.refresh.every=2", "optimizer.refresh.staleness=1"))):
            with self.subTest(keys=keys):
                self.train(f"zero{i}", *keys, "run.steps=5")
                self.train(f"filled{i}", *keys, "run.steps=5", environment={"GLIBC_TUNABLES": "glibc.malloc.perturb=165"})
                self.assert_same_run(f"zero{i}", f"filled{i}", 5)

    def test_31_in_training(self):
        """The limit falls to what the process has: the copy that the next save is written from has no room. Also where
        the processor has AVX-512 without bf16: its name, which a save writes, is known without asking the library for memory."""
        for run, highest in (("run", {}), ("other", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"})):
            child = self.start(*self.train_arguments(run, *WIDE, *ENDLESS), environment=highest)
            self.wait_for(lambda: self.steps_done(run) >= 2, child, 90)
            with open(f"/proc/{child.pid}/status") as file:
                size = int(re.search(r"VmSize:\s+(\d+) kB", file.read())[1]) * 1024
            resource.prlimit(child.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
            child.send_signal(signal.SIGHUP)  # save
            _, output = self.finish(child, UNAVAILABLE, 120)
            self.assert_one_message(output)
            self.assertIn("out of memory", output)
