#!/usr/bin/env python3
"""B1: Adam with gradients that are tau updates old, on f(w) = w^T H w / 2 with eigenvalues from 1 to 100, in double. In
the eigenbasis of H it is Adam on a diagonal H; in other coordinates it is far slower. Ends with 1 where that fails.

Plain Python, no part of sestina: the statement that the other experiments start from (arXiv 2602.03515, section 2).
"""

import math
import random
import sys

STEPS, RATE, BETA1, BETA2, EPS = 500, 0.02, 0.9, 0.999, 1e-8


def random_rotation(n, seed):
    """Rows are orthonormal: Gram-Schmidt on normal vectors, twice."""
    draw = random.Random(seed)
    rows = []
    for _ in range(n):
        row = [draw.gauss(0, 1) for _ in range(n)]
        for _ in range(2):
            for other in rows:
                part = dot(row, other)
                row = [x - part * y for x, y in zip(row, other)]
        norm = math.sqrt(dot(row, row))
        rows.append([x / norm for x in row])
    return rows


def dot(a, b):
    return math.fsum(x * y for x, y in zip(a, b))


def times(rows, x):
    return [dot(row, x) for row in rows]


def transposed(rows):
    return [list(column) for column in zip(*rows)]


def adam(gradient, start, tau, forward=lambda g: g, back=lambda u: u):
    """The weights after each update; moments are kept of forward(gradient), and steps come back by back."""
    path, m, v = [start], [0.0] * len(start), [0.0] * len(start)
    for t in range(1, STEPS + 1):
        g = forward(gradient(path[max(0, t - 1 - tau)]))
        m = [BETA1 * a + (1 - BETA1) * b for a, b in zip(m, g)]
        v = [BETA2 * a + (1 - BETA2) * b * b for a, b in zip(v, g)]
        rate = RATE * (1 - (t - 1) / STEPS)
        step = back([rate * a / (1 - BETA1**t) / (math.sqrt(b / (1 - BETA2**t)) + EPS) for a, b in zip(m, v)])
        path.append([a - b for a, b in zip(path[-1], step)])
    return path


def trial(n, axes, tau):
    """Final loss with H aligned and rotated, and how far Adam in the eigenbasis is from Adam on the diagonal."""
    eigenvalues = [100.0 ** (i / (n - 1)) for i in range(n)]
    columns = transposed(axes)  # columns of `axes` transposed are eigenvectors
    start = [1.0] * n
    diagonal = lambda w: [e * x for e, x in zip(eigenvalues, w)]
    full = lambda w: times(columns, diagonal(times(axes, w)))
    value = lambda w: 0.5 * dot(w, diagonal(w))
    aligned = adam(diagonal, start, tau)
    placed = times(columns, start)  # the same point
    rotated = adam(full, placed, tau)
    inside = adam(full, placed, tau, lambda g: times(axes, g), lambda u: times(columns, u))
    differ = max(abs(a - b) for x, w in zip(aligned, inside) for a, b in zip(x, times(axes, w)))
    return value(aligned[-1]), value(times(axes, rotated[-1])), differ


def main():
    c = math.sqrt(0.5)
    cases = {"2, 45 degrees": (2, [[c, c], [-c, c]]), "64, random": (64, random_rotation(64, 1))}
    fine = True
    print("| dimensions | delay | loss, aligned | rotated | rotated / aligned | Adam in the eigenbasis differs by |")
    print("|---|---|---|---|---|---|")
    for name, (n, axes) in cases.items():
        for tau in (0, 4, 16):
            aligned, rotated, differ = trial(n, axes, tau)
            print(f"| {name} | {tau} | {aligned:.3g} | {rotated:.3g} | {rotated / aligned:.3g} | {differ:.1e} |")
            fine &= differ <= 1e-12 and (tau < 16 or rotated > 5 * aligned)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
