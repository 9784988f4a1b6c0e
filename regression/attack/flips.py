#!/usr/bin/env python3
"""Bits that flip on purpose in short runs that are audited, on one rank and on two: what finds each of them, which change
nothing, which escape, and how often the passes that a failed audit computes again name the place where the bits flipped.
Then clean updates, for false alarms. Python 3.11.

  flips.py --sestina build/bin/sestina [--mpiexec mpiexec] [--flips 1000] [--clean 100000] [--seed 1] [--every 1]

The same seed gives the same flips. --every 0: without audits. It ends with 1 where a gradient or an activation escapes
audits of every update, where such a place is named wrongly, or at a false alarm."""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))
from sestina import Case, CORRUPTED, DIVERGED, DONE, MICRO  # noqa: E402

STEPS = 20
PASSES = ("gradient", "activation")  # what is computed again
KINDS = {"gradient": ("adamw", "muon", "soap"), "activation": ("adamw", "muon", "soap"), "weight": ("adamw", "muon", "soap"), "moment": ("adamw", "muon", "soap"),
         "basis": ("soap", "kl-shampoo"), "message": ("adamw", "muon"), "checkpoint": ("adamw", "soap")}
FOUND = ("audit, computed again", "audit, run ended", "not finite, run ended", "digest of the copy for a checkpoint")
OUTCOMES = (*FOUND, "changes no bit of the result", "changes bits, final loss as before", "escapes")
SAME_LOSS = 1e-4  # relative
REPLAYS = ("named: pass, layer and tensor that were flipped", "named: another place", "passed: the flipped gradient is the first wrong one",
           "passed: another gradient is the first wrong one", "nothing")


class Flips(Case):
    def runTest(self):
        """One frame of the fault tests; the flips are called by main."""

    def launch(self, ranks, run, *keys, fault=None, seconds=300):
        arguments = self.train_arguments(run, *MICRO, "metrics.every=1000000", *keys)
        environment = {"SESTINA_FAULT": fault} if fault else {}
        child = self.start(*arguments, environment=environment) if ranks == 1 else self.start_ranks(ranks, *arguments, environment=environment)
        code, output = self.finish(child, None, seconds)
        self.children.clear()
        return code, output

    def keys(self, kind, precision):
        return (f"run.steps={STEPS}", f"optimizer.kind={kind}", f"train.precision={precision}", "checkpoint.every=5", "checkpoint.keep=0",
                *(("optimizer.refresh.every=4",) if kind in ("soap", "kl-shampoo") else ()))

    def clean(self, ranks, kind, precision):
        """A run without a flip, made once."""
        run = f"clean-{kind}-{precision}-{ranks}"
        if not self.folder(run, STEPS).exists():
            code, output = self.launch(ranks, run, *self.keys(kind, precision), "run.audit_every=1")
            self.assertEqual(code, DONE, output[-2000:])
            self.assertEqual(self.events(run, "audit"), [])
            self.clean_updates += STEPS
        return run

    def events(self, run, what):
        return [line for line in self.lines(run, "event") if line["what"] == what]

    def outcome(self, code, output, run, clean):
        if code == CORRUPTED:
            return "audit, run ended"
        if code == DIVERGED:
            return "not finite, run ended"
        self.assertEqual(code, DONE, output[-2000:])
        same = self.tensors(self.folder(run, STEPS)) == self.tensors(self.folder(clean, STEPS)) and self.losses(run) == self.losses(clean)
        if self.events(run, "audit"):
            self.assertTrue(same, "an update that was computed again differs from that of a clean run")
            return "audit, computed again"
        if any("its copy in memory changed" in (line["error"] or "") for line in self.lines(run, "checkpoint")):
            self.assertTrue(same, "a copy for a checkpoint changed the run")
            return "digest of the copy for a checkpoint"
        if same:
            return "changes no bit of the result"
        last, right = self.losses(run)[STEPS], self.losses(clean)[STEPS]
        return "changes bits, final loss as before" if abs(last - right) < SAME_LOSS * right else "escapes"

    def replay(self, output, run):
        """What the passes that were computed again said of the place, by what the program says that it flips."""
        path = self.work / run / "first_difference.json"
        if not path.exists():
            return "nothing"
        found = json.loads(path.read_text())
        flipped = re.search(r"SESTINA_FAULT flips bits of the (\S.*) in update", output)
        self.assertTrue(flipped, output[-2000:])
        gradient = found["pass"] == "backward" and found["tensor"] == flipped[1]
        if not found["comes_again"]:
            return REPLAYS[2 if gradient else 3]
        activation = found["pass"] == "forward" and f"{found['tensor']} of {found['layer']}" == flipped[1]
        return REPLAYS[0 if gradient or activation else 1]

    def flip(self, seed):
        """One run with a flip; returns what, layout, whether it persists, and the outcome."""
        choose = random.Random(seed)
        what, ranks = choose.choice(list(KINDS)), choose.choice((1, 2))
        if what == "message":
            ranks = 2
        kind, precision = choose.choice(KINDS[what]), choose.choice(("fp32", "bf16"))
        persists = choose.random() < 0.1
        update = choose.randrange(2, STEPS) if what != "checkpoint" else choose.choice((5, 10, 15))
        fault = (f"flip:{what}:{'from' if persists else 'step'}={update}:rank={choose.randrange(ranks)}"
                 f":bits={choose.choice((1, 1, 1, 2, 4))}:place={choose.randrange(2**31)}")
        clean = self.clean(ranks, kind, precision)
        run = "flipped"
        code, output = self.launch(ranks, run, *self.keys(kind, precision), f"run.audit_every={self.every}", fault=fault)
        if persists and what == "checkpoint":
            self.assertNotEqual(code, DONE)  # two saves in a row
            found = "digest of the copy for a checkpoint" if "its copy in memory changed" in output else "escapes"
        else:
            found = self.outcome(code, output, run, clean)
        replay = self.replay(output, run) if what in PASSES and found.startswith("audit") else None
        shutil.rmtree(self.work / run)
        if replay:
            self.replays[what, ranks, persists, replay] += 1
        if replay in (REPLAYS[1], REPLAYS[4]) or (persists and replay and replay != REPLAYS[0]):
            print(f"WRONG PLACE: seed {seed}: {fault} {kind} {precision}: {replay}", flush=True)
            self.wrong += 1
        if what in PASSES and found not in FOUND and self.every == 1:
            print(f"ESCAPES: seed {seed}: {fault} {kind} {precision}: {found}", flush=True)
            self.wrong += 1
        return what, ranks, persists, found

    def clean_run(self, ranks, updates):
        """False alarms in so many clean updates."""
        run = f"long-{ranks}"
        code, output = self.launch(ranks, run, f"run.steps={updates}", "optimizer.kind=muon", "run.audit_every=1", seconds=3000)
        alarms = len(self.events(run, "audit"))
        if code != DONE or alarms:
            print(f"FALSE ALARM: {ranks} ranks: exit code {code}, {alarms} events\n{output[-2000:]}", flush=True)
            self.wrong += 1
        self.clean_updates += updates
        shutil.rmtree(self.work / run)


def table(counts, outcomes):
    rows = {}
    for (what, ranks, persists, found), count in counts.items():
        rows.setdefault((what, ranks, persists), collections.Counter())[found] += count
    print("| bits of | ranks | | flips | " + " | ".join(outcomes) + " |\n|" + "---|" * (4 + len(outcomes)))
    for (what, ranks, persists), found in sorted(rows.items()):
        print(f"| {what} | {ranks} | {'again and again' if persists else 'once'} | {sum(found.values())} | "
              + " | ".join(str(found[outcome]) for outcome in outcomes) + " |")
    whole = collections.Counter()
    for found in rows.values():
        whole += found
    print(f"| all | | | {sum(whole.values())} | " + " | ".join(str(whole[outcome]) for outcome in outcomes) + " |\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Bits that flip on purpose: what finds them")
    parser.add_argument("--sestina", required=True)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--clean", type=int, default=100000, help="updates without a flip, half of them on two ranks")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--every", type=int, default=1, help="run.audit_every of the runs with a flip")
    options = parser.parse_args()
    os.environ |= {"SESTINA": options.sestina, "MPIEXEC": options.mpiexec}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    attack, counts = Flips(), collections.Counter()
    attack.wrong, attack.clean_updates, attack.every, attack.replays = 0, 0, options.every, collections.Counter()
    attack.setUp()
    try:
        for number in range(options.flips):
            counts[attack.flip(f"{options.seed} {number}")] += 1
            if number % 100 == 99 and number + 1 < options.flips:
                print(f"{number + 1} flips", flush=True)
        for ranks in (1, 2):
            if options.clean:
                attack.clean_run(ranks, options.clean // 2)
    finally:
        attack.tearDown()
        table(counts, OUTCOMES)
        table(attack.replays, REPLAYS)
        print(f"{attack.clean_updates} clean updates; {attack.wrong} that are wrong", flush=True)
    return 1 if attack.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
