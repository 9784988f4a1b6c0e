"""Tables (Markdown) and plots (SVG) of experiments, from the runs there are; filled into a report between marks."""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import line_plot

DASHES = {0: "5 3", 1: "1 3"}  # by delay scale


def header(experiment):
    base = experiment.baseline_label
    return ["method", "delay scale", "lr", "final validation loss", f"above {base}",
            "slowdown: at 20 %, 50 % of itself without delay; at its own end",
            f"at 20 %, 50 % of {base}; at its own end", "paper"]


def pair(results, name, reference):
    if not reference or name == reference:
        return "-"
    values = [*(results.slowdown(name, reference, share) for share in (0.2, 0.5)),
              results.slowdown_at_end(name, reference)]
    return "-" if None in values else "{}, {}; {}".format(*values)


def row(results, name, baseline):
    cell = results.cells[name]
    loss, plain = results.loss(name), results.loss(baseline) if baseline else None
    if loss is None:
        tried = len(results.losses(cell))
        state = f"{tried} rates tried" if tried else "not run"
        return [cell.label, str(cell.scale), "-", state, "-", "-", "-", cell.paper or "-"]
    seeds = len(results.curves(name))
    few = "" if seeds == len(results.seeds) else f", {seeds} of {len(results.seeds)} seeds"
    few += f", {gone} diverged" if (gone := results.diverged(name)) else ""
    edge = " (edge of the grid)" if results.at_edge(cell) else ""
    return [cell.label, str(cell.scale), f"{results.rate(cell):g}{edge}",
            f"{loss:.4f} (spread {results.spread(name):.4f}{few})", "-" if plain is None else f"{loss - plain:+.4f}",
            pair(results, name, cell.own), pair(results, name, baseline), cell.paper or "-"]


def table(lines):
    """Lines of cells as Markdown, without the columns that say nothing."""
    said = [i for i, column in enumerate(zip(*lines[1:])) if set(column) != {"-"}]
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return ["| " + " | ".join(line[i] for i in said) + " |" for line in lines]


def of(results, experiment):
    rows = [row(results, name, experiment.baseline) for name in experiment.rows or experiment.queue]
    lines = table([header(experiment), *rows])
    if experiment.claims:
        whole = results.of_all_seeds()
        judged = [[text, *judge(whole)] for text, judge in experiment.claims]
        lines += ["", *table([["claim", "verdict", "numbers"], *judged])]
    return lines


def plot(results, experiment, path):
    """Validation loss of the first seed from a tenth of the run on; a colour for each method and, where delay scales
    differ, dashed without delay, dotted at a scale of 1. False: no run is there."""
    names = experiment.rows or experiment.queue
    dashes = DASHES if len({results.cells[name].scale for name in names}) > 1 else {}
    labels = list(dict.fromkeys(results.cells[name].label for name in names))
    curves = []
    for name in names:
        cell = results.cells[name]
        for points in results.curves(name)[:1]:
            late = [(step, loss) for step, _, loss in points if step >= results.steps / 10]
            curves.append((name, late, labels.index(cell.label), dashes.get(cell.scale, "")))
    if curves:
        line_plot.write_svg(path, curves, experiment.title, "update", "validation loss (nats per byte)")
    return bool(curves)


def fill(report, results, experiments, usual):
    """Runs of another length than is usual for their experiment have marks and plots of their own: NAME-STEPS."""
    text = report.read_text()
    for name, experiment in experiments.items():
        name += "" if results.steps == usual[name] else f"-{results.steps}"
        if f"<!-- table {name} -->" not in text:
            continue
        lines = of(results, experiment)
        image = report.with_name(f"{report.stem}_{name}.svg")
        if plot(results, experiment, image):
            lines += ["", f"![validation loss]({image.name})"]
        part = "\n".join(lines)
        place = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = place.sub(lambda match: f"{match[1]}{part}\n{match[2]}", text)
    report.write_text(text)
