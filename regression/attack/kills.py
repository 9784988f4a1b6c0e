#!/usr/bin/env python3
"""SIGKILL at random moments of short runs on one to three ranks. Each run is killed some times, goes on with -r auto every
time, is brought to its end, verified in full, and must equal a run that was never killed bit for bit. Python 3.11.

  kills.py --sestina build/bin/sestina [--mpiexec mpiexec] [--kills 1000] [--seed 1] [--keep DIR]

A run that differs is told with its seed and stays in DIR."""

import argparse
import collections
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
from sestina import Case, DONE, KILL, MICRO  # noqa: E402

STEPS = 60
LIMIT = 200  # seconds for what a loaded machine does late
KINDS = ("adamw", "muon", "soap", "shampoo")


def lives(process):
    """Whether it is there and not only waiting to be reaped."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Kills(Case):
    def runTest(self):
        """One frame of the fault tests; the rounds are called by main."""

    def launch(self, ranks, run, *keys):
        arguments = self.train_arguments(run, "-r", "auto", *MICRO, f"run.steps={STEPS}", "run.abort_timeout=90", *keys)
        return self.start(*arguments) if ranks == 1 else self.start_ranks(ranks, *arguments)

    def undisturbed(self, ranks, kind):
        """Name of the run that is compared with, and its seconds; made once."""
        run = f"whole-{kind}-{ranks}"
        begin = time.monotonic()
        if not self.folder(run, STEPS).exists():
            self.finish(self.launch(ranks, run, f"optimizer.kind={kind}", "checkpoint.every=20"), DONE, 400)
            self.seconds[run] = time.monotonic() - begin
        return run, self.seconds[run]

    def begin(self, ranks, run, keys):
        """The run as a child, and the process numbers of its ranks."""
        child = self.launch(ranks, run, *keys)
        return child, self.rank_processes(child, ranks, LIMIT) if ranks > 1 else {0: child.pid}

    def end(self, child, processes):
        """Exit code and output once every rank has ended; no code where the launcher hangs after them."""
        end = time.monotonic() + LIMIT
        while any(lives(process) for process in processes.values()):
            self.assertLess(time.monotonic(), end, f"a rank does not end: {[p for p in processes.values() if lives(p)]}")
            time.sleep(0.01)
        try:
            return self.finish(child, None, 60)
        except subprocess.TimeoutExpired:
            self.counts["launchers that hung after their ranks"] += 1
            child.kill()
            return None, child.communicate()[0]

    def kill_once(self, choose, ranks, run, keys, seconds):
        """Starts the run and kills it; says how, None when it came to its end before."""
        how = choose.choice(("start", "anywhere", "anywhere", "save", "save"))
        child, processes = self.begin(ranks, run, keys)
        if how == "save":
            while child.poll() is None and not any((self.work / run).glob(f"checkpoints/step_*.tmp-{processes[0]}")):
                time.sleep(0.001)
        time.sleep(choose.uniform(0, {"start": 0.2, "anywhere": seconds, "save": 0.15}[how]))
        for rank in list(processes) if choose.random() < 0.3 else [choose.randrange(ranks)]:
            try:
                os.kill(processes[rank], KILL)
            except ProcessLookupError:
                pass
        code, output = self.end(child, processes)
        if code == DONE:
            return None
        self.assertIn(code, (None, -KILL if ranks == 1 else 128 + KILL), output[-2000:])
        if list((self.work / run / "checkpoints").glob("*.tmp-*")):
            how += ", a save half done"
            self.assertNotIn(".tmp-", self.run_sestina("checkpoint", "list", self.work / run))
        return how

    def round(self, seed):
        """One run with its kills."""
        counts = self.counts
        choose = random.Random(seed)
        ranks, kind = choose.choices((1, 2, 3), (8, 1, 1))[0], choose.choice(KINDS)
        keys = (f"optimizer.kind={kind}", f"checkpoint.every={choose.choice((2, 3, 5))}", "checkpoint.keep=2",
                f"checkpoint.async={choose.choice(('true', 'false'))}", f"metrics.eval_every={choose.choice((0, 10))}")
        whole, seconds = self.undisturbed(ranks, kind)
        run = f"killed-{seed.replace(' ', '-')}"
        for _ in range(choose.randint(2, 8)):
            how = self.kill_once(choose, ranks, run, keys, seconds)
            if how is None:
                counts["ended before the kill"] += 1
                break
            counts["kills"] += 1
            counts[f"{ranks} ranks"] += 1
            counts[how] += 1
        code, output = self.end(*self.begin(ranks, run, keys))
        self.assertIn(code, (None, DONE), output[-2000:])
        self.run_sestina("checkpoint", "verify", self.work / run, "--full")
        self.assert_nothing_left(run)
        self.assert_same_run(whole, run, STEPS)
        counts["runs that are equal"] += 1
        shutil.rmtree(self.work / run)
        self.children.clear()


def main():
    parser = argparse.ArgumentParser(description="Kills at random moments, each run compared with one that was never killed")
    parser.add_argument("--sestina", required=True)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("attack-kills"), help="for runs that differ")
    options = parser.parse_args()
    os.environ |= {"SESTINA": options.sestina, "MPIEXEC": options.mpiexec}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    attack, counts, wrong = Kills(), collections.Counter(), 0
    attack.seconds, attack.counts = {}, counts
    attack.setUp()
    number = 0
    try:
        while counts["kills"] < options.kills:
            number += 1
            seed = f"{options.seed} {number}"
            try:
                attack.round(seed)
            except (AssertionError, subprocess.TimeoutExpired) as problem:
                wrong += 1
                print(f"DIFFERS: seed {seed}: {problem}", flush=True)
                shutil.copytree(attack.work, options.keep / seed.replace(" ", "-"), symlinks=True, ignore=shutil.ignore_patterns("whole-*"))
                shutil.rmtree(attack.work / f"killed-{seed.replace(' ', '-')}", ignore_errors=True)
            if number % 10 == 0:
                print(dict(counts), flush=True)
    finally:
        attack.tearDown()
    print("\n".join(f"{count:6} {what}" for what, count in sorted(counts.items())))
    print(f"{wrong} runs differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
