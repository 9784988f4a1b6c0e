"""Finished runs in a file next to a report: a line of JSON for each. Tables are made of it without training, and what one
machine has not ended goes on on another."""

import functools
import hashlib
import json
import pathlib
import threading

import kernel_text
import training_runs as runs


def processor():
    """Its name and its widest instructions, for the reader."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    wide = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in fields.get("flags", "").split()]
    return " ".join([fields.get("model name", "unknown"), fields.get("cpu family", ""), *wide[-1:]])


text_digest = functools.cache(kernel_text.digest_of)  # asked for every run


def digest_of(deck, settings, text):
    """Of all that decides a run's numbers apart from its rate, its seed and the processor."""
    return hashlib.sha256(json.dumps([deck.read_text(), settings, text_digest(text)]).encode()).hexdigest()[:16]


class KeptRuns:
    """By (cell, rate, seed), of one number of updates: points of the run's curve, none if it diverged."""

    def __init__(self, path, steps):
        self.path, self.steps, self.lock = path, steps, threading.Lock()
        self.points, self.digests = {}, {}
        if path is None or not path.exists():
            return
        for number, line in enumerate(path.read_text().splitlines(), 1):
            try:
                run = json.loads(line)
                key = run["cell"], run["lr"], run["seed"]
                if run["steps"] == steps:
                    self.points[key] = [tuple(point) for point in run["points"]]
                    self.digests[key] = run["settings"]
            except (ValueError, KeyError, TypeError) as error:
                raise RuntimeError(f"{path}:{number} is no finished run: {error!r}") from error

    def has(self, key, digest):
        if key in self.digests and self.digests[key] != digest:
            raise RuntimeError(f"{self.path}: {' '.join(map(str, key))} was trained with another deck, other settings or another text: "
                               "remove its line to train it again")
        return key in self.points

    def add(self, key, digest, folder):
        """From the run's folder, once it is at its end."""
        if self.path is None:
            return
        points = [] if runs.diverged(folder) else runs.curve(folder)
        cell, rate, seed = key
        line = {"cell": cell, "lr": rate, "seed": seed, "steps": self.steps, "settings": digest, "processor": processor(),
                "points": [(update, round(seconds, 1), round(loss, 6)) for update, seconds, loss in points]}
        with self.lock, open(self.path, "a") as file:
            file.write(json.dumps(line) + "\n")
            self.points[key], self.digests[key] = points, digest
