"""Runs of `sestina train`, one folder each: a run that is complete is not repeated, one that was interrupted goes on;
what its metrics say afterwards. For bench/compare_optimizers.py and science/."""

import json
import os
import pathlib
import shutil
import subprocess
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
DIVERGED = 79  # exit code of sestina


def one_thread():
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}


# Open MPI: as root in a container, and more ranks than cores, which then give way to each other.
LAUNCH = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
          "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}


def lines_of(folder, kind):
    """Lines of a kind in the order of updates; after a resume the later ones count."""
    with open(folder / "metrics.jsonl") as file:
        lines = {line["step"]: line for line in map(json.loads, file) if line["kind"] == kind}
    return [lines[step] for step in sorted(lines)]


def complete(folder, steps):
    try:
        return lines_of(folder, "val")[-1]["step"] >= steps
    except (OSError, IndexError, ValueError):
        return False


def diverged(folder):
    return (folder / "diverged").exists()


def train(sestina, deck, folder, steps, arguments, keep_checkpoint=True, ranks=1):
    """Trains in the folder to the last update unless that is done. False: it diverged; any other failure raises."""
    command = [str(sestina), "train", "-i", str(deck), "-d", str(folder), "-r", "auto", *arguments,
               f"run.steps={steps}", "run.threads=1"]
    settings = json.dumps([tomllib.loads(deck.read_text()), command[8:]])
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "settings.json"
    if record.exists() and record.read_text() != settings:
        raise RuntimeError(f"{folder} was trained with other settings ({record}): remove it, or take another --work")
    record.write_text(settings)
    if diverged(folder):
        return False
    if not complete(folder, steps):
        with open(folder / "out.txt", "a") as out:
            launch = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
            environment = {**one_thread(), **(LAUNCH if ranks > 1 else {})}
            code = subprocess.run([*launch, *command], stdout=out, stderr=out, env=environment).returncode
        if code == DIVERGED:
            (folder / "diverged").touch()
        elif code != 0:
            raise RuntimeError(f"exit code {code}: {' '.join(command)}, see {folder}/out.txt")
    if not keep_checkpoint:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return not diverged(folder)


def call(sestina, *words):
    """What a verb prints."""
    done = subprocess.run([str(sestina), *map(str, words)], capture_output=True, text=True, env=one_thread())
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def inspect(sestina, folder, look):
    """Keeps what look(sestina, folder) finds in a run, as JSON."""
    if not (folder / "after.json").exists() and not diverged(folder):
        (folder / "after.json").write_text(json.dumps(look(sestina, folder)))


def inspected(folder):
    path = folder / "after.json"
    return json.loads(path.read_text()) if path.exists() else None


def final_loss(folder, steps):
    return lines_of(folder, "val")[-1]["loss"] if complete(folder, steps) else float("inf")


def curve(folder):
    """(update, seconds of training, validation loss) of a run; evaluation is not in the seconds."""
    seconds, done, points = 0.0, 0, []
    train_lines = lines_of(folder, "train")
    for val in lines_of(folder, "val"):
        while done < len(train_lines) and train_lines[done]["step"] <= val["step"]:
            seconds += train_lines[done]["step_s"]
            done += 1
        points.append((val["step"], seconds, val["loss"]))
    return points


def reached(points, loss):
    """Update and seconds at which the loss is first reached, between evaluations by straight lines; None: never."""
    if points[0][2] <= loss:
        return points[0][:2]
    for (s0, t0, l0), (s1, t1, l1) in zip(points, points[1:]):
        if l1 <= loss < l0:
            part = (l0 - loss) / (l0 - l1)
            return s0 + part * (s1 - s0), t0 + part * (t1 - t0)
    return None
