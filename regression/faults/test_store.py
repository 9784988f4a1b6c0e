"""Faults 7 and 8: preconditioners on a disk that is full, taken, damaged or too small for the deck's budgets. What an engine
of transfers does with short and failing ones, and io_uring forbidden, are unit tests (regression/unit/io/test_block_file.cpp)."""

import collections
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import time

from sestina import BAD_DATA, BAD_DECK, CANNOT_CREATE, Case, DONE

PAGED = ("optimizer.kind=soap", "optimizer.refresh.every=4", "optimizer.refresh.tier=nvme")
LATE = ("optimizer.refresh.mode=async", "optimizer.refresh.staleness=2")


class Store(Case):
    def test_07_memory_and_disk_agree(self):
        """The same weights and state, saved and resumed in either tier, with jobs in flight."""
        self.train("memory", *PAGED, *LATE, "optimizer.refresh.tier=host", "run.steps=13")
        self.train("disk", *PAGED, *LATE, "run.steps=6")
        self.train("disk", "-r", "auto", "optimizer.refresh.tier=host", "run.steps=9")
        output = self.train("disk", "-r", "auto", "optimizer.refresh.tier=nvme", f"optimizer.refresh.path={self.work}/elsewhere",
                            "run.steps=13")
        self.assert_same_run("memory", "disk", 13)
        self.assertIn("elsewhere/rank_00000.blocks", output)
        self.assertEqual(list((self.work / "elsewhere").iterdir()), [], "the scratch file goes with the run")

    def test_07_tiers_by_field(self):
        """Some fields on the disk, others not, other ones after a resume: the same run."""
        soap = PAGED[:2]
        self.train("memory", *soap, *LATE, "run.steps=13")
        for steps, tier in ((6, '{basis_left="nvme",snapshot_right="nvme"}'), (9, '{default="nvme",factor_left="host"}'), (13, '"nvme"')):
            output = self.train("fields", "-r", "auto", *soap, *LATE, f"optimizer.refresh.tier={tier}", f"run.steps={steps}")
            self.assertIn("optimizer state in", output)
        self.assert_same_run("memory", "fields", 13)
        output = self.train("wrong", *soap, '-n', 'optimizer.refresh.tier={basis="nvme"}', expected=BAD_DECK)
        self.assertIn("optimizer.refresh.tier.basis: unknown key", output)

    def test_07_moments_too(self):
        """Moments and momenta on the disk, alone and with preconditioners, in either tier after a resume, and on a disk that is full."""
        away = ("optimizer.state_tier=nvme",)
        for kind in (("optimizer.kind=adamw",), ("optimizer.kind=muon",), (*PAGED, *LATE)):
            name = kind[0][-4:]
            self.train(f"memory-{name}", *kind, "run.steps=9")
            output = self.train(f"disk-{name}", *kind, *away, "run.steps=4")
            self.assertIn("optimizer state in", output)
            self.train(f"disk-{name}", "-r", "auto", *kind, "optimizer.state_tier=device", "run.steps=6")
            self.train(f"disk-{name}", "-r", "auto", *kind, *away, "run.steps=9")
            self.assert_same_run(f"memory-{name}", f"disk-{name}", 9)
        for key in ("host_bytes", "nvme_bytes"):
            output = self.train("few", *away, f"optimizer.refresh.{key}=5000", expected=BAD_DECK)
            self.assertRegex(output, key + r": 5000 bytes are too few: .*optimizer state.* \d+")

    def test_07_memory_falls(self):
        """What lies on the disk is not in memory: by the kernel's own count of the process, between the same two updates."""
        wide = ("model.hidden_size=192", "model.intermediate_size=512", "model.num_hidden_layers=4", "run.steps=1000000",
                "checkpoint.every=1000000", "metrics.every=1", "optimizer.refresh.queue_depth=4")
        memory = {}
        for tier in ("host", "nvme"):
            child = self.start(*self.train_arguments(tier, *PAGED, *wide, f"optimizer.refresh.tier={tier}"))
            self.wait_for(lambda: self.steps_done(tier) >= 6, child, 90)
            samples = []
            for _ in range(20):
                status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
                samples.append(int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024)
                time.sleep(0.02)
            memory[tier] = max(samples)
            child.kill()
            _, output = self.finish(child)
        # Log: "... 38.5 MiB in 112 blocks ...; at most 7.1 MiB of them in memory".
        said = re.search(r"blocks: ([\d.]+) MiB in \d+ blocks.*at most ([\d.]+) MiB", output)
        gone = (float(said[1]) - float(said[2])) * 2**20
        self.assertGreater(gone, 2**24)
        self.assertGreater(memory["host"] - memory["nvme"], 0.8 * gone, memory)

    def test_07_state_larger_than_memory(self):
        """Four times as much on the disk as memory may hold of it: a save and a resume move it in pieces, by the kernel's count of
        the process at its peak and by the plan's; killed after a save, it goes on to the bit."""
        wide = (*PAGED, "model.hidden_size=192", "model.intermediate_size=512", "model.num_hidden_layers=4", "metrics.every=1",
                "optimizer.refresh.queue_depth=4", "optimizer.refresh.host_bytes=9500000")
        endless = ("run.steps=1000000", "checkpoint.every=1000000")
        self.train("memory", *wide, "optimizer.refresh.tier=host", "run.steps=8")
        mebi = 2**20
        everything = self.planned_bytes((*wide, "optimizer.refresh.tier=host"))["checkpoint_copy"]
        for mode in ("false", "true"):
            keys = (*wide, f"checkpoint.async={mode}")
            planned = self.planned_bytes(keys)
            self.assertGreater(planned["nvme"], 4 * 9500000)
            self.assertLess(planned["checkpoint_copy"], 17 * mebi if mode == "false" else everything - planned["nvme"] + 18 * mebi)
            plain = self.peak(f"plain-{mode}", keys + endless, lambda run: self.steps_done(run) >= 6)
            saves = (*keys, "run.steps=1000000", "checkpoint.every=3")
            saving = self.peak(f"saves-{mode}", saves, lambda run: self.steps_done(run) >= 6 and self.saved_steps(run))
            self.assertLess(saving - plain, planned["checkpoint_copy"] + 6 * mebi, "what a save takes")
            resumed = self.peak(f"saves-{mode}", ("-r", "auto", *keys, *endless),
                                lambda run: self.lines(run, "rewind") and self.lines(run, "train")[-1]["step"] >= 8)
            self.assertLess(resumed - plain, 14 * mebi, "what a load takes")
            self.train(f"saves-{mode}", "-r", "auto", *keys, "run.steps=8")
            self.assertEqual(self.tensors(self.folder("memory", 8)), self.tensors(self.folder(f"saves-{mode}", 8)))

    def planned_bytes(self, keys):
        return json.loads(self.run_sestina("plan", "-i", "deck.toml", *keys, "--json"))["ranks"][0]["bytes"]

    def peak(self, run, arguments, done):
        """Bytes of memory that the run had at most until then; it is killed."""
        child = self.start(*self.train_arguments(run, *arguments))
        self.wait_for(lambda: done(run), child, 90)
        status = pathlib.Path(f"/proc/{child.pid}/status").read_text()
        child.kill()
        self.finish(child)
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def test_07_damaged_file(self):
        """Noise written over the file: one message that names file and field, and no checkpoint of what came after."""
        child = self.start(*self.train_arguments("run", *PAGED, "run.steps=1000000", "checkpoint.every=1000000"))
        path = self.work / "run/store/rank_00000.blocks"
        self.wait_for(lambda: self.steps_done("run") >= 10, child)
        noise = random.Random(1).randbytes(path.stat().st_size)
        with path.open("r+b") as file:
            while child.poll() is None:
                os.pwrite(file.fileno(), noise, 0)
                with contextlib.suppress(OSError):  # EIO where the program's own transfers past the page cache came between
                    os.fsync(file.fileno())
        _, output = self.finish(child, BAD_DATA)
        self.assert_one_message(output)
        self.assertRegex(output, r"rank_00000\.blocks: bytes \d+ to \d+ \(/optimizer/.*(factor|basis)_.*\): what was read is not what was written")
        self.assertEqual(self.saved_steps("run"), [])

    def test_07_budgets(self):
        """Fewer bytes than it takes, in either tier."""
        output = self.train("run", *PAGED, "optimizer.refresh.host_bytes=5000", expected=BAD_DECK)
        self.assertRegex(output, r"host_bytes: 5000 bytes are too few: .* at least \d+")
        output = self.train("run", *PAGED, "optimizer.refresh.nvme_bytes=5000", expected=BAD_DECK)
        self.assertRegex(output, r"nvme_bytes: 5000 bytes are too few: optimizer state takes \d+")
        self.train("run", *PAGED, "optimizer.refresh.host_bytes=100000000", "run.steps=5", expected=DONE)

    def test_07_bench_pages_too(self):
        """`bench step` and `bench optimizer` measure the tier that the deck names."""
        for what in ("step", "optimizer"):
            output = self.run_sestina("bench", what, "-i", "deck.toml", *PAGED, "optimizer.refresh.path=store", "optimizer.refresh.nvme_bytes=5000",
                               expected=BAD_DECK)
            self.assertRegex(output, r"nvme_bytes: 5000 bytes are too few")

    def test_07_bench_fits_periods(self):
        """`bench step` refreshes as often as workers can where the deck says so, from speeds that it measures itself."""
        deck = ("optimizer.kind=soap", *LATE, "--steps", "2", "--json")
        periods = [json.loads(self.run_sestina("bench", "step", "-i", "deck.toml", *deck, *more).splitlines()[-1])["refresh_every"]
                   for more in ((), ("optimizer.refresh.every=auto",))]
        self.assertEqual([], periods[0])
        self.assertTrue(periods[1] and all(period >= 3 for period in periods[1]), periods[1])

    def test_07_trace_by_block(self):
        """Blocks in trace.json: those told with an update add up to the bytes of its line, and stalls to its waits."""
        keys = (*PAGED, *LATE, "optimizer.state_tier=nvme", "metrics.every=1", "metrics.trace=4", "checkpoint.every=4", "run.steps=9")
        self.train("run", *keys)
        events = json.loads((self.work / "run/trace.json").read_text())["traceEvents"]
        ends = {event["id2"]["local"]: event for event in events if event["ph"] == "e"}
        moved, waited = collections.Counter(), collections.Counter()
        for event in events:
            if event["ph"] != "b":
                continue
            end = ends.pop(event["id2"]["local"])
            self.assertEqual([end[key] for key in ("cat", "name", "pid", "tid")], [event[key] for key in ("cat", "name", "pid", "tid")])
            self.assertGreaterEqual(end["ts"], event["ts"])
            self.assertIn("/optimizer/", event["name"])
            facts = event["args"]
            tiers = ("host", "nvme") if event["cat"] == "state write" else ("nvme", "worker" if "worker" in event["cat"] else "host")
            self.assertEqual((facts["from"], facts["to"]), tiers)
            moved[event["cat"], facts["update"]] += facts["bytes"]
            waited[event["cat"], facts["update"]] += (end["ts"] - event["ts"]) / 1e6
        self.assertEqual(ends, {})
        for line in self.lines("run", "train")[2:6]:
            step = line["step"]
            self.assertGreater(line["tier_read_bytes"], 0)
            self.assertEqual(moved["state read", step], line["tier_read_bytes"])
            self.assertEqual(moved["state write", step], line["tier_written_bytes"])
            if step != 5:  # a save waits too, before the step
                self.assertAlmostEqual(waited["state wait", step], line["tier_wait_s"], delta=0.002 + 0.01 * line["tier_wait_s"])
        self.run_sestina("report", str(self.work / "run"))
        if any(seconds > 0 for (kind, _), seconds in waited.items() if kind == "state wait"):
            self.assertIn("waits for state in trace.json", (self.work / "run/report.html").read_text())

    def test_07_no_place(self):
        """A file in the way of the folder, and another run in the same one."""
        output = self.train("run", *PAGED, "optimizer.refresh.path=text.txt/store", expected=CANNOT_CREATE)
        self.assertIn("text.txt/store", output)
        first = self.start(*self.train_arguments("first", *PAGED, "optimizer.refresh.path=store", "run.steps=1000000"))
        self.wait_for(lambda: self.steps_done("first") >= 10, first)
        output = self.train("second", *PAGED, "optimizer.refresh.path=store", expected=CANNOT_CREATE)
        self.assertIn("another run keeps its state there", output)
        self.assert_one_message(output)

    def test_07_full_disk(self):
        """A small tmpfs in a mount namespace of its own, where the system allows that: said at the start, with numbers."""
        (self.work / "small").mkdir()
        script = 'mount -t tmpfs -o size=64k none small && "$0" "$@"; echo code $?'
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, self.sestina,
                               *map(str, self.train_arguments("run", *PAGED, "optimizer.refresh.path=small"))],
                              cwd=self.work, capture_output=True, text=True, timeout=60)
        if "code" not in done.stdout:
            self.skipTest(f"no mount namespace: {done.stderr.strip()}")
        self.assertRegex(done.stdout + done.stderr, r"MiB of state have no room on its disk, which has 0\.\d MiB free")
        self.assertIn(f"code {CANNOT_CREATE}", done.stdout)
