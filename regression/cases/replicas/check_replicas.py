"""Trains tiny_replicas.toml on four ranks and compares the bytes in its metrics with the plan's."""

import json
import pathlib
import subprocess
import sys

sestina, mpiexec, deck, text, work = sys.argv[1:]
SHORT = ["schedule.warmup_steps=4", "schedule.steps=14", "optimizer.refresh.every=4", "model.num_hidden_layers=1",
         f'data.source=[{{format = "text", path = "{text}"}}]']


def run(name, *more):
    """Train lines of 14 updates with an evaluation after the seventh, and a save after the last."""
    folder = pathlib.Path(work) / name
    done = subprocess.run([*mpiexec.split(), "-n", "4", sestina, "train", "-i", deck, "-d", str(folder), *SHORT,
                           "run.steps=14", "metrics.eval_every=7", "checkpoint.every=0", *more], capture_output=True,
                          text=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "train"]


def planned(*layout):
    """Bytes of one synchronisation of all matrices."""
    done = subprocess.run([sestina, "plan", "-i", deck, "--json", *SHORT, *layout], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["coherence"]


plan = planned("parallel.dp=4")
every, rare = run("budget_0"), run("budget_20", "optimizer.refresh.coherence_every=20")
for lines in (every, rare):
    for line in lines:
        if line["coherence_bytes"] % plan["bytes"]:
            sys.exit(f"update {line['step']}: {line['coherence_bytes']} bytes, planned {plan['bytes']}")
        if (line["replica_drift"] is None) != (line["coherence_bytes"] == 0):
            sys.exit(f"update {line['step']}: drift {line['replica_drift']}")
# SOAP's own count begins after the first update: jobs are sent in updates 5, 9 and 13, and used by all ranks in 8, 12 and
# 16. What the evaluation after update 7 forced is told in the line of 8.
steps = [line["step"] for line in every if line["coherence_bytes"]]
if steps != [8, 12]:
    sys.exit(f"synchronised in updates {steps}")
print("bytes are those of the plan")
total = [sum(line["coherence_bytes"] for line in lines) for lines in (every, rare)]
if not total[1] < total[0]:
    sys.exit(f"bytes with budgets 0 and 20: {total}")
print("a budget sends less")
bound = ["optimizer.refresh.coherence_drift=1e9", "metrics.eval_every=0", "run.steps=10"]
looks = planned("parallel.dp=4", *bound)
lines = run("looked_at", *bound)
sent = [line["coherence_bytes"] for line in lines]
if not any(sent) or any(one not in (0, looks["sketch_bytes"]) for one in sent) or looks["sketches_per_update"] != 0.25:
    sys.exit(f"looks at the drift: {sent} bytes, planned {looks}")
if any(line["replica_drift"] is not None for line in lines):
    sys.exit("replicas were made equal though none had drifted beyond the bound")
print("looks at the drift send what the plan says")
LAYOUTS = {"homes": ["parallel.dp=2", "parallel.tp=2"],
           "duplicated": ["parallel.dp=2", "parallel.tp=2", "parallel.tp_update=duplicated", "parallel.partition=optimal"],
           "asynchronous": ["parallel.dp=2", "parallel.pp=2", "parallel.schedule=async-1f1b", "train.micro_batch=2",
                            "model.num_hidden_layers=2"]}
for name, layout in LAYOUTS.items():
    of_one, lines = planned(*layout)["bytes"], run(name, *layout)
    sent = [line["coherence_bytes"] for line in lines]
    if not any(sent) or any(one % of_one for one in sent):
        sys.exit(f"{name}: {sent} bytes, planned {of_one}")
print("so are those of homes, duplicated updates and asynchronous stages")
plain = pathlib.Path(work) / "fixed.toml"
plain.write_text("".join(line for line in pathlib.Path(deck).read_text().splitlines(True)
                         if not line.startswith("coherence_every")))
deck = str(plain)  # the key is refused next to fixed visibility
if any("coherence_bytes" in line for line in run("fixed", "optimizer.refresh.visibility=fixed")):
    sys.exit("fixed visibility: metrics of coherence")
print("fixed visibility sends nothing")
