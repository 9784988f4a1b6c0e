"""Singular values of a model's matrices before and after training, without any library."""

import array
import json
import math
import operator
import pathlib
import tempfile

import training_runs as runs


def matrices(path):
    """Name -> rows, of the fp32 matrices of layers in a safetensors file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, tensor in json.loads(data[8:begin]).items():
        if ".layers." in name and len(tensor["shape"]) == 2:
            first, last = tensor["data_offsets"]
            values, columns = array.array("f", data[begin + first : begin + last]), tensor["shape"][1]
            found[name] = [list(values[i : i + columns]) for i in range(0, len(values), columns)]
    return found


def dot(a, b):
    return sum(map(operator.mul, a, b))


def singular_values(rows, tolerance=1e-7, sweeps=30):
    """One-sided Jacobi (Hestenes) on the shorter side, falling."""
    rows = rows if len(rows) <= len(rows[0]) else [list(column) for column in zip(*rows)]
    squares = [dot(row, row) for row in rows]
    for _ in range(sweeps):
        turned = 0
        for i in range(len(rows)):
            for j in range(i + 1, len(rows)):
                across = dot(rows[i], rows[j])
                if abs(across) <= tolerance * math.sqrt(squares[i] * squares[j]):
                    continue
                turned += 1
                zeta = (squares[j] - squares[i]) / (2 * across)
                t = math.copysign(1, zeta) / (abs(zeta) + math.hypot(1, zeta))
                c = 1 / math.hypot(1, t)
                s = c * t
                rows[i], rows[j] = ([c * a - s * b for a, b in zip(rows[i], rows[j])],
                                    [s * a + c * b for a, b in zip(rows[i], rows[j])])
                squares[i], squares[j] = dot(rows[i], rows[i]), dot(rows[j], rows[j])
        if turned == 0:
            break
    return sorted(map(math.sqrt, squares), reverse=True)


def exported(sestina, run, place):
    runs.call(sestina, "checkpoint", "export", run, "-o", place)
    return matrices(place / "model.safetensors")


def drift(sestina, folder):
    """Largest relative movement of a singular value, and growth of the largest one, over all matrices of a run. The
    start is a run of the same deck with one update at a rate of zero."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        runs.call(sestina, "train", "-i", folder / "deck.resolved.toml", "-d", place / "run", "run.steps=1",
                  "run.threads=1", "schedule.lr=0", "schedule.warmup_steps=0")
        before, after = exported(sestina, place / "run", place / "hf0"), exported(sestina, folder, place / "hf")
    moved, growth = 0.0, 0.0
    for name, start in before.items():
        old, new = singular_values(start), singular_values(after[name])
        moved = max(moved, *(abs(b - a) / a for a, b in zip(old, new)))
        growth = max(growth, new[0] / old[0] - 1)
    return {"largest_relative_drift": moved, "growth_of_largest": growth}
