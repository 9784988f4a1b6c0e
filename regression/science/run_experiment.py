#!/usr/bin/env python3
"""Experiments on optimizers under delay, trained on a text of yours: see README.md next to this file.

  run_experiment.py --sestina build/bin/sestina --text TEXT --work build/science --report REPORT     all of them, hours
  run_experiment.py --text TEXT --only B2 side ...                                                   some of them
  run_experiment.py --work build/science --table --report REPORT                                     trains nothing

Each cell is tried with the rates of its grid (first seed), which grows where the best one is at its edge, then with the
other seeds at the best rate. A run that is complete is not repeated, one that was interrupted goes on. A report gets
its tables between lines `<!-- table NAME -->` and `<!-- end -->` (NAME-STEPS for another --steps), plots next to it.
"""

import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import threading

import experiments
import tables
from kept_runs import KeptRuns, digest_of
from results import Results, next_rate, runs

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 1500


class AnotherFailed(Exception):
    """Ends a worker quietly: the run that failed tells."""


class Shared:
    """What the workers share."""

    def __init__(self, cells):
        self.failed = threading.Event()  # set by the first run that fails: no other one starts
        self.locks = {name: threading.Lock() for name in cells}


def train(args, results, cell, rate, seed, shared):
    if shared.failed.is_set():
        raise AnotherFailed
    folder, key = results.folder(cell, rate, seed), (cell.name, rate, seed)
    digest = digest_of(HERE / cell.deck, [*cell.settings, *args.override], args.text)
    if results.kept.has(key, digest):
        return
    known = results.points(cell, rate, seed) is not None
    text = str(args.text.resolve())
    fine = runs.train(args.sestina, HERE / cell.deck, folder, args.steps,
                      [*cell.settings, *args.override, f"schedule.lr={rate:g}", f"run.seed={seed}",
                       f'data.source=[{{path="{text}"}}]'], keep_checkpoint=bool(cell.after), ranks=cell.ranks)
    if not cell.after:  # that one is read from the folder
        results.kept.add(key, digest, folder)
    if not known:
        loss = f"{runs.final_loss(folder, args.steps):.4f}" if fine else "diverged"
        print(f"{cell.name:32} lr {rate:g} seed {seed}: {loss}", flush=True)


def run_cell(args, results, cell, shared):
    if cell.rate_of:
        run_cell(args, results, results.cells[cell.rate_of], shared)
    with shared.locks[cell.name]:
        for rate in results.losses(cell):  # what was finished earlier is kept too
            train(args, results, cell, rate, args.seeds[0], shared)
        while not cell.rate_of and (rate := next_rate(cell, results.losses(cell))) is not None:
            train(args, results, cell, rate, args.seeds[0], shared)
        for seed in args.seeds:
            train(args, results, cell, results.rate(cell), seed, shared)
            if cell.after:
                runs.inspect(args.sestina, results.folder(cell, results.rate(cell), seed), cell.after)


def work_through(args, results, cells):
    shared = Shared(results.cells)

    def work(cell):
        try:
            run_cell(args, results, cell, shared)
        except Exception:
            shared.failed.set()
            raise

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        done = [pool.submit(work, cell) for cell in cells]
    errors = [error for future in done if (error := future.exception()) and not isinstance(error, AnotherFailed)]
    for error in errors:
        if not isinstance(error, (RuntimeError, OSError, subprocess.CalledProcessError)):
            raise error
    if errors:
        sys.exit("\n".join(f"run_experiment.py: {error}" for error in errors))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sestina", default=str(HERE.parents[1] / "build/bin/sestina"))
    parser.add_argument("--text", type=pathlib.Path, default=os.environ.get("SESTINA_TEXT"),
                        help="a file of at least a megabyte; default: SESTINA_TEXT")
    parser.add_argument("--work", type=pathlib.Path, default=HERE.parents[1] / "build/science")
    parser.add_argument("--steps", type=int, help=f"updates; default: the experiment's own number, {STEPS} for most")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    usual = [name for name, experiment in experiments.EXPERIMENTS.items() if not experiment.steps]
    parser.add_argument("--only", nargs="+", default=usual,
                        help="experiments, in this order; default: all with the usual number of updates")
    parser.add_argument("--cells", nargs="+", help="these cells of theirs alone")
    parser.add_argument("--override", nargs="*", default=[], help="further section.key=value")
    parser.add_argument("--table", action="store_true", help="of the runs there are; trains nothing")
    parser.add_argument("--report", type=pathlib.Path,
                        help="in place of printing tables fills them into this file; those of other experiments stay")
    parser.add_argument("--kept", type=pathlib.Path,
                        help="file of finished runs: those in it are not trained again, and others are added to it")
    parser.add_argument("--list", action="store_true", help="says how far each cell is; trains nothing")
    args = parser.parse_args()
    if unknown := set(args.only) - set(experiments.EXPERIMENTS):
        parser.error(f"--only: no experiment {', '.join(unknown)}; there are {', '.join(experiments.EXPERIMENTS)}")
    if args.steps is None:
        own = {experiments.EXPERIMENTS[name].steps or STEPS for name in args.only}
        if len(own) > 1:
            parser.error(f"--only: runs of {', '.join(map(str, sorted(own)))} updates: one length at a time")
        args.steps = own.pop()
    return args


def main():
    args = parse()
    try:
        kept = KeptRuns(args.kept, args.steps)
    except RuntimeError as error:
        sys.exit(f"run_experiment.py: {error}")
    results = Results(args.work, experiments.CELLS, args.steps, args.seeds, kept)
    names = list(dict.fromkeys(name for e in args.only for name in experiments.EXPERIMENTS[e].queue))
    cells = [experiments.CELLS[name] for name in names if not args.cells or name in args.cells]
    if args.list:
        for cell in cells:
            seeds = len(results.curves(cell.name))
            print(f"{cell.name:32} rates {len(results.losses(cell))}  seeds {seeds} of {len(args.seeds)}")
        return
    if not args.table:
        if args.text is None:
            sys.exit("run_experiment.py: no text to train on: --text FILE")
        work_through(args, results, cells)
    if args.report:
        lengths = {name: experiment.steps or STEPS for name, experiment in experiments.EXPERIMENTS.items()}
        chosen = {name: experiments.EXPERIMENTS[name] for name in args.only}
        tables.fill(args.report, results, chosen, lengths)
        return
    for name in args.only:
        print("\n".join(tables.of(results, experiments.EXPERIMENTS[name])))


if __name__ == "__main__":
    main()
