#!/usr/bin/env python3
r"""Runs one regression case: a folder with case.toml, decks, and reference.json. Python 3.11, standard library alone.

case.toml
  labels = ["regression", "quick"]     for ctest -L
  timeout = 240                        seconds for the whole case; a slow machine takes five times what a fast one does
  [[step]]                             in order; the first that fails ends the case
    command = ["{sestina}", "train", "-i", "{case}/deck.toml", "-d", "{work}/run"]
    exit = 0                           expected exit code
    stdout = ["..."], stderr = ["..."] texts that must be found there (regular expressions)
    environment = {NAME = "value"}
    save = {loss = 'loss +(\S+)'}      keeps the first group found in stdout under a name, for [[equal]]
  [[equal]]                            two saved values: the same text or, with a tolerance, numbers that close to each other
    values = ["a", "b"]
    tolerance = 1e-6                   relative; absent: the same text
  [[apart]]                            runs that must differ, each from each: in the train loss of some step, relatively
    runs = ["{work}/a", "{work}/b"]
    by = 1e-3
  [[metrics]]                          train and val lines of a run, compared with reference.json
    run = "{work}/run"
    tolerance = {loss = 1e-5, grad_norm = 1e-4, val_loss = 1e-5}   relative, per value
    exact = false                      true: bit for bit where the reference was made with the same instruction set
  [[close]]                            like [[metrics]], the second run being the reference
    runs = ["{work}/a", "{work}/b"]
    tolerance = {loss = 1e-6}
  [[same]]                             the tensors of two checkpoints of one layout, or converted to one, bit for bit
    checkpoints = ["{work}/a/checkpoints/latest", "{work}/b/checkpoints/latest"]
  [[same]]                             files, byte for byte
    files = ["{work}/x", "{case}/y"]
  [[same]]                             train losses of two runs, step by step, bit for bit
    runs = ["{work}/a", "{work}/b"]

Names in braces: sestina (the program), case (its folder), work (an empty folder), data (regression/data),
golden (regression/golden), mpiexec (the launcher of ranks).

  run_case.py --sestina build/bin/sestina regression/cases/NAME [--keep] [--work DIR]
  run_case.py ... --update --reason "why the numbers changed"
"""

import argparse
import datetime
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

TRAIN_KEYS = ("loss", "grad_norm", "lr")


class Failure(Exception):
    pass


def fill(value, names):
    """Replaces {name} in a text, or in every text of a list."""
    if isinstance(value, list):
        return [fill(entry, names) for entry in value]
    return re.sub(r"\{(\w+)\}", lambda m: str(names[m[1]]), value)


def run_step(step, names, deadline, saved):
    command = fill(step["command"], names)
    environment = dict(os.environ, **{k: fill(v, names) for k, v in step.get("environment", {}).items()})
    print("$", " ".join(command), flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=names["work"],
                              env=environment, timeout=max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise Failure("ran past the case's time") from None
    problem = None
    if done.returncode != step.get("exit", 0):
        problem = f"exit code {done.returncode}, expected {step.get('exit', 0)}"
    for stream in ("stdout", "stderr"):
        for pattern in step.get(stream, []):
            if problem is None and not re.search(fill(pattern, names), getattr(done, stream), re.MULTILINE):
                problem = f"{stream} lacks {pattern!r}"
    for name, pattern in step.get("save", {}).items():
        found = re.search(pattern, done.stdout, re.MULTILINE)
        if found:
            saved[name] = found[1]
        elif problem is None:
            problem = f"stdout lacks {pattern!r}"
    if problem:
        raise Failure(f"{problem}\n--- stdout\n{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-4000:]}")


def read_metrics(run):
    """{"loss": {step: value}, ...} of a run, later lines superseding earlier ones after a rewind."""
    series = {key: {} for key in (*TRAIN_KEYS, "val_loss")}
    for line in pathlib.Path(run, "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["kind"] == "train":
            for key in TRAIN_KEYS:
                series[key][entry["step"]] = entry[key]
        elif entry["kind"] == "val":
            series["val_loss"][entry["step"]] = entry["loss"]
    return series


def manifest(checkpoint):
    return json.loads(pathlib.Path(checkpoint, "manifest.json").read_text())


def tensor_digests(checkpoint):
    return {t["path"]: (t["dtype"], t["shape"], [p["xxh3_64"] for p in t["pieces"]]) for t in manifest(checkpoint)["tensors"]}


def instruction_set(run):
    return manifest(pathlib.Path(run, "checkpoints", "latest"))["run"]["instruction_set"]


def difference(got, want):
    if got is None or not math.isfinite(got) or not math.isfinite(want):
        return 0.0 if got == want else math.inf
    return abs(got - want) / max(abs(want), 1e-30)


def compare_series(run, got, want, tolerances, exact):
    for key, tolerance in tolerances.items():
        if got[key].keys() != want[key].keys():
            raise Failure(f"{run}: {key} at steps {sorted(got[key])}, reference has {sorted(want[key])}")
        worst = max(want[key], key=lambda step: difference(got[key][step], want[key][step]), default=None)
        if worst is None:
            raise Failure(f"{run}: no {key} at all")
        far = difference(got[key][worst], want[key][worst])
        limit = 0.0 if exact else tolerance
        print(f"  {run} {key}: largest relative difference {far:.2e} at step {worst}, allowed {limit:.0e}")
        if not far <= limit:
            raise Failure(f"{run}: {key} at step {worst} is {got[key][worst]!r}, reference {want[key][worst]!r}")


def compare_metrics(table, names, reference):
    run = fill(table["run"], names)
    stored = reference["metrics"].get(table["run"])
    if stored is None:
        raise Failure(f"reference.json has no numbers for {table['run']}: run with --update")
    exact = table.get("exact", False) and instruction_set(run) == stored["instruction_set"]
    want = {key: {int(step): value for step, value in stored[key].items()} for key in table["tolerance"]}
    compare_series(table["run"], read_metrics(run), want, table["tolerance"], exact)


def compare_close(table, names):
    first, second = (read_metrics(run) for run in fill(table["runs"], names))
    compare_series(table["runs"][0], first, second, table["tolerance"], False)


def compare_same(table, names):
    kind, paths = next(iter(table.items()))
    first, second = fill(paths, names)
    read = {"checkpoints": tensor_digests, "runs": lambda run: read_metrics(run)["loss"],
            "files": lambda path: pathlib.Path(path).read_bytes()}[kind]
    a, b = read(first), read(second)
    if a == b and a:
        return
    if kind == "files" or not a:
        raise Failure(f"{paths[0]} and {paths[1]} differ")
    other = sorted(str(k) for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    raise Failure(f"{paths[0]} and {paths[1]} differ in {len(other)} of {len(a)}: {', '.join(other[:5])}")


def compare_equal(table, saved):
    first, second = (saved[name] for name in table["values"])
    print(f"  {table['values'][0]} {first}, {table['values'][1]} {second}")
    if first != second and not difference(float(first), float(second)) <= table.get("tolerance", -1.0):
        raise Failure(f"{table['values'][0]} is {first}, {table['values'][1]} is {second}")


def compare_apart(table, names):
    runs = {run: read_metrics(fill(run, names))["loss"] for run in table["runs"]}
    for a, b in itertools.combinations(runs, 2):
        far = max(difference(runs[a][step], runs[b][step]) for step in runs[a].keys() & runs[b].keys())
        if not far > table["by"]:
            raise Failure(f"{a} and {b} cannot be told apart: their losses differ by {far:.1e} at most")


def new_reference(case, names, reason):
    numbers = {}
    for table in case.get("metrics", []):
        run = fill(table["run"], names)
        series = read_metrics(run)
        numbers[table["run"]] = {"instruction_set": instruction_set(run)} | {key: series[key] for key in table["tolerance"]}
    return {"reason": reason, "date": datetime.date.today().isoformat(), "metrics": numbers}


def run_case(folder, sestina, work, update_reason):
    case = tomllib.loads((folder / "case.toml").read_text())
    here = pathlib.Path(__file__).resolve().parent
    names = {"sestina": sestina, "case": folder, "work": work, "data": here / "data", "golden": here / "golden",
             "mpiexec": os.environ.get("MPIEXEC", "mpiexec")}
    deadline = time.monotonic() + case.get("timeout", 240)
    saved = {}
    for step in case["step"]:
        run_step(step, names, deadline, saved)
    for table in case.get("equal", []):
        compare_equal(table, saved)
    for table in case.get("apart", []):
        compare_apart(table, names)
    for table in case.get("same", []):
        compare_same(table, names)
    for table in case.get("close", []):
        compare_close(table, names)
    if update_reason:
        text = json.dumps(new_reference(case, names, update_reason), indent=1)
        (folder / "reference.json").write_text(text + "\n")
        print("reference.json rewritten:", update_reason)
    elif case.get("metrics"):
        reference = json.loads((folder / "reference.json").read_text())
        for table in case["metrics"]:
            compare_metrics(table, names, reference)


def main():
    parser = argparse.ArgumentParser(description="Run one regression case")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--sestina", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, help="folder to work in, emptied first (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the temporary folder")
    parser.add_argument("--update", action="store_true", help="rewrite reference.json from this run")
    parser.add_argument("--reason", default="", help="why the numbers change; kept in reference.json")
    options = parser.parse_args()
    if options.update and not options.reason:
        parser.error("--update needs --reason")
    work = options.work or pathlib.Path(tempfile.mkdtemp(prefix="sestina-case-"))
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        run_case(options.folder.resolve(), options.sestina.resolve(), work.resolve(), options.reason if options.update else "")
    except Failure as failure:
        print(f"FAILED {options.folder.name}: {failure}")
        return 1
    finally:
        if not options.keep and not options.work:
            shutil.rmtree(work, ignore_errors=True)
    print("ok", options.folder.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
