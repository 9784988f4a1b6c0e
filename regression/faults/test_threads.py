"""Threads of a running process: how many there are, and on which cores they may run."""

import os
import pathlib
import unittest

from sestina import Case

ASYNC = ('optimizer={kind = "soap", refresh = {mode = "async", workers = 2, every = 4, staleness = 2, tier = "nvme"}}', "data.validation_fraction=0")


def masks(process):
    """Of each thread, the cores that it may run on."""
    found = []
    for task in pathlib.Path(f"/proc/{process}/task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue
        found += [line.split()[1] for line in lines if line.startswith("Cpus_allowed_list")]
    return found


class Threads(Case):
    def train(self, *arguments, environment=None):
        child = self.start("train", "-i", self.deck, "-d", "run", *ASYNC, *arguments, environment=environment)
        self.wait_for(lambda: self.lines("run", "train"), child, 60)
        return child

    def test_helpers_leave_the_core_of_the_main_thread(self):
        """OpenMP binds the main thread to one core; refresh workers, the mover of blocks and the reader of data have all."""
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("one core: nothing to be bound to")
        child = self.train(environment={"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true", "OMP_PLACES": "cores"})
        seen = masks(child.pid)
        whole = pathlib.Path("/proc/self/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
        main = pathlib.Path(f"/proc/{child.pid}/status").read_text().split("Cpus_allowed_list:")[1].split()[0]
        self.assertNotEqual(main, whole)
        self.assertGreaterEqual(seen.count(whole), 4, seen)

    def test_stages_share_the_workers(self):
        """Four stages in one process have as many refresh workers as one."""
        counts = []
        for stages in (1, 4):
            child = self.train(f"parallel.pp={stages}", "model.num_hidden_layers=4")
            counts.append(len(masks(child.pid)))
            child.terminate()
            child.wait()
            (self.work / "run").rename(self.work / f"run_{stages}")
        self.assertEqual(counts[0], counts[1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
