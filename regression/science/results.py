"""What the runs of a cell gave: the best rate of its grid, losses, and updates to a loss."""

import copy
import dataclasses
import math
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import training_runs as runs
from kept_runs import KeptRuns

LADDER = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
MOST_RATES = 5  # of a grid that grew at its edges


@dataclasses.dataclass
class Number:
    """A mean over seeds; a bound where a seed did not get there: then it is larger."""
    value: float
    bound: bool = False

    def __str__(self):
        return f"{'> ' if self.bound else ''}{self.value:.2f}"


def next_rate(cell, losses):
    """losses: by rate, of the first seed. The rate to try next; None: the best one is known. A best rate at the edge of
    the grid moves the edge on."""
    middle = LADDER.index(cell.rate)
    for i in (middle, middle - 1, middle + 1):
        if LADDER[i] not in losses:
            return LADDER[i]
    best = LADDER.index(best_rate(losses))
    for i in (best - 1, best + 1):
        if 0 <= i < len(LADDER) and LADDER[i] not in losses and len(losses) < MOST_RATES:
            return LADDER[i]
    return None


def best_rate(losses):
    return min(losses, key=lambda rate: (losses[rate], rate))


class Results:
    def __init__(self, work, cells, steps, seeds, kept=None):
        self.work, self.cells, self.steps, self.seeds = work, cells, steps, seeds
        self.kept = kept or KeptRuns(None, steps)
        self.read = {}  # by folder: points of its curve
        self.all_seeds = False  # a cell counts when all of its seeds are there

    def of_all_seeds(self):
        whole = copy.copy(self)
        whole.all_seeds = True
        return whole

    def folder(self, cell, rate, seed):
        return self.work / cell.name / f"lr{rate:g}_seed{seed}"

    def points(self, cell, rate, seed):
        """(update, seconds of training, validation loss) of a finished run; none if it diverged; None: not at its end."""
        kept, folder = self.kept.points.get((cell.name, rate, seed)), self.folder(cell, rate, seed)
        if kept is not None:
            return kept
        if folder not in self.read and runs.diverged(folder):
            self.read[folder] = []
        if folder not in self.read and runs.complete(folder, self.steps):
            self.read[folder] = runs.curve(folder)
        return self.read.get(folder)

    def losses(self, cell):
        """Final loss by rate, of the first seed's finished runs; infinite where one diverged."""
        ended = {rate: self.points(cell, rate, self.seeds[0]) for rate in LADDER}
        return {rate: points[-1][2] if points else math.inf for rate, points in ended.items() if points is not None}

    def rate(self, cell):
        """The best rate; None: not known yet."""
        if cell.rate_of:
            return self.rate(self.cells[cell.rate_of])
        losses = self.losses(cell)
        return best_rate(losses) if next_rate(cell, losses) is None else None

    def at_edge(self, cell):
        rates = sorted(self.losses(cell))
        return not cell.rate_of and self.rate(cell) in (rates[0], rates[-1])

    def curves(self, name):
        """By seed, of the finished runs at the best rate."""
        rate = self.rate(self.cells[name])
        if rate is None:
            return []
        there = [points for seed in self.seeds if (points := self.points(self.cells[name], rate, seed))]
        return [] if self.all_seeds and len(there) < len(self.seeds) else there

    def diverged(self, name):
        """Seeds that did at the best rate."""
        rate = self.rate(self.cells[name])
        return sum(self.points(self.cells[name], rate, seed) == [] for seed in self.seeds)

    def loss(self, name):
        """Mean of the final losses; None: not run."""
        curves = self.curves(name)
        return statistics.mean(points[-1][2] for points in curves) if curves else None

    def spread(self, name):
        finals = [points[-1][2] for points in self.curves(name)]
        return max(finals) - min(finals)

    def target(self, name, share):
        """The loss that a cell has after this share of its updates, mean over seeds."""
        update = share * self.steps
        return statistics.mean(min(points, key=lambda p: abs(p[0] - update))[2] for points in self.curves(name))

    def slowdown(self, name, reference, share):
        """Updates to that loss of the reference, in units of the reference's own; None: one of them was not run."""
        curves = self.curves(name)
        if not curves or not self.curves(reference):
            return None
        updates = self.mean_updates(curves, self.target(reference, share))
        return Number(updates.value / (share * self.steps), updates.bound)

    def slowdown_at_end(self, name, reference):
        """Updates to the final loss of the cell, over the updates at which the reference has it; where that one ends
        higher, the updates to its final loss over all of its own. None: one of them was not run."""
        mine, others = self.curves(name), self.curves(reference)
        if not mine or not others:
            return None
        goal = max(self.loss(name), self.loss(reference))
        updates, other = (self.mean_updates(curves, goal) for curves in (mine, others))
        return Number(updates.value / other.value, other.value <= mine[0][0][0])

    def mean_updates(self, curves, goal):
        """Updates to a loss, a bound where a run does not get there (one of those whose mean it is may end above)."""
        hits = [runs.reached(points, goal) for points in curves]
        return Number(statistics.mean(hit[0] if hit else self.steps for hit in hits), None in hits)

    def after(self, name):
        """By seed, what was found in the cell's runs at the best rate."""
        rate = self.rate(self.cells[name])
        folders = [] if rate is None else [self.folder(self.cells[name], rate, seed) for seed in self.seeds]
        return [found for folder in folders if (found := runs.inspected(folder)) is not None]
