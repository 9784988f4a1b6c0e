"""Sweeps of few updates on a tiny model: killed and called again, stopped by TERM, halved, shared by the tasks of an
array; `report --compare` of their runs."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

SESTINA, DECK, WORK = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
QUICK = ["train.global_batch=2", "data.sequence_length=32", "schedule.warmup_steps=1", "metrics.every=1", "metrics.eval_every=4",
         "metrics.eval_batches=1", "run.deterministic=true", "sweep.threads=1"]
RATES = [1e-3, 3e-3, 1e-2]
STOPPED = 75


def command(folder, steps, *words):
    return [SESTINA, "sweep", "-i", DECK, "-d", str(WORK / folder), *QUICK, f"run.steps={steps}", *words]


def sweep(folder, steps, *words, environment=None):
    done = subprocess.run([*command(folder, steps, *words), "--json"], capture_output=True, text=True, env={**os.environ, **(environment or {})})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def starts(folder):
    """Number of starts of each run."""
    return {path.parent.name: sum('"kind":"run"' in line.replace(" ", "") for line in path.read_text().splitlines())
            for path in (WORK / folder).glob("**/metrics.jsonl")}


def losses(result):
    return [run["loss"] for run in result["runs"]]


def wait_for(ready, child):
    deadline = time.monotonic() + 60
    while not ready():
        assert child.poll() is None, "the sweep ended too early"
        assert time.monotonic() < deadline, "the runs do not begin"
        time.sleep(0.01)


def steps_of(run):
    path = WORK / run / "metrics.jsonl"
    return path.read_text().count('"kind":"train"') if path.exists() else 0


def check_whole():
    result = sweep("whole", 4, "sweep.seeds=[1]")
    assert [run["values"]["schedule.lr"] for run in result["runs"]] == RATES, result
    assert all(run["exit"] == 0 and run["seed"] == 1 for run in result["runs"]), result
    best = min(result["runs"], key=lambda run: run["loss"])
    assert result["best"]["values"] == best["values"] and result["best"]["loss"] == best["loss"], result
    edge = {RATES[0]: ["below"], RATES[-1]: ["above"]}.get(best["values"]["schedule.lr"], [])
    assert [found["extend"] for found in result["on_edge"]] == edge, result
    assert json.loads((WORK / "whole/sweep.json").read_text()) == result
    assert f"lr = {best['values']['schedule.lr']}" in (WORK / "whole/best.toml").read_text()
    assert "validation loss against schedule.lr" in (WORK / "whole/sweep.html").read_text()
    subprocess.run([SESTINA, "train", "-i", str(WORK / "whole/best.toml"), "-n"], check=True, stdout=subprocess.DEVNULL)
    again = sweep("whole", 4, "sweep.seeds=[1]")
    assert again == result and set(starts("whole").values()) == {1}, "finished runs were trained again"


def check_interrupted(name, stop, code):
    """Long runs that end in their middle go on, and what is finished is left alone."""
    words = ["sweep.seeds=[1]", "sweep.jobs=1", "checkpoint.every=5"]
    child = subprocess.Popen(command(name, 300, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: steps_of(f"{name}/lr=0.003_seed=1") > 10, child)
    child.send_signal(stop)
    assert child.wait() == code, child.returncode
    result = sweep(name, 300, *words)
    assert starts(name) == {"lr=0.001_seed=1": 1, "lr=0.003_seed=1": 2, "lr=0.01_seed=1": 1}, starts(name)
    return losses(result)


def check_halving():
    result = sweep("halving", 8, "sweep.seeds=[1]", "sweep.method=halving")
    assert [run["steps"] for run in result["runs"]] == [2, 2, 2, 4, 4, 8], result
    first = sorted(result["runs"][:3], key=lambda run: run["loss"])
    assert [run["values"] for run in result["runs"][3:5]] == [run["values"] for run in first[:2]], result
    assert result["best"]["values"] == result["runs"][-1]["values"], result


def check_array():
    tasks = [{"SLURM_ARRAY_TASK_ID": str(i), "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "2"} for i in (1, 2)]
    assert sweep("array", 4, "sweep.seeds=[1]", environment=tasks[0]) is None
    assert sorted(starts("array")) == ["lr=0.001_seed=1", "lr=0.01_seed=1"]
    assert losses(sweep("array", 4, "sweep.seeds=[1]", environment=tasks[1])) == losses(json.loads((WORK / "whole/sweep.json").read_text()))


def check_comparison():
    sweep("whole-2", 4, "sweep.seeds=[2]")
    runs = [str(path.parent) for path in sorted(WORK.glob("whole*/*/metrics.jsonl"))]
    done = subprocess.run([SESTINA, "report", "--compare", "--json", *runs], capture_output=True, text=True, check=True)
    compared = json.loads(done.stdout)
    assert [entry["n"] for entry in compared["entries"]] == [2, 2, 2], compared
    mine = [run["loss"] for folder in ("whole", "whole-2") for run in json.loads((WORK / folder / "sweep.json").read_text())["runs"]
            if run["values"]["schedule.lr"] == RATES[0]]
    entry = next(entry for entry in compared["entries"] if entry["name"] == "lr=0.001")
    assert abs(entry["mean"] - sum(mine) / 2) < 1e-12 and abs(entry["spread"] - abs(mine[0] - mine[1]) / 2 ** 0.5) < 1e-12, (entry, mine)
    assert entry["z"] is not None and entry["mid_schedule"] is None and len(compared["pairs"]) == 3, compared


check_whole()
killed = check_interrupted("killed", signal.SIGKILL, -signal.SIGKILL)
stopped = check_interrupted("stopped", signal.SIGTERM, STOPPED)
assert killed == stopped, "an interruption changed a loss"
check_halving()
check_array()
check_comparison()
print("sweep, halving, array and comparison agree")
