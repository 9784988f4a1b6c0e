"""Draws the history of the speed guard: regression/reports/speed_guard.md and a plot for each build that has several counts."""

import sys

import speed_guard

sys.path.insert(0, str(speed_guard.ROOT / "regression"))
import line_plot  # noqa: E402


def groups_of(history):
    """The lines of each build, in the order in which the builds came."""
    groups = {}
    for line in history:
        groups.setdefault((line["compiler"], line["build"], *line["libraries"]), []).append(line)
    return groups


def table(lines):
    first, last = lines[0]["counts"], lines[-1]["counts"]
    rows = ["| case | first | last | change |", "|---|---|---|---|"]
    for name, instructions in last.items():
        begin = first.get(name)
        change = f"{100 * (instructions / begin - 1):+.2f} %" if begin else "new"
        rows.append(f"| {name} | {f'{begin / 1e6:.3f}' if begin else '-'} | {instructions / 1e6:.3f} | {change} |")
    return rows


def plot(lines, path):
    names = list(lines[-1]["counts"])
    curves = []
    for number, name in enumerate(names):
        having = [(i, line["counts"][name]) for i, line in enumerate(lines, 1) if name in line["counts"]]
        curves.append((name, [(i, 100 * n / having[0][1]) for i, n in having], number, ""))
    line_plot.write_svg(path, curves, "Instructions, compared with the first record", "record", "percent")


def write_report(history, folder):
    text = ["# Instructions of steps and kernels", "",
            "Written by `regression/bench/speed_guard/speed_guard.py --report` from `history.jsonl` next to it: millions of",
            "instructions that valgrind counts of the rounds of each case, on a processor with AVX2 and one thread. What it is",
            "for and what it cannot see: [regression/README.md](../README.md).", ""]
    for number, (build, lines) in enumerate(groups_of(history).items(), 1):
        text += [f"## {build[0]}", "", f"`{build[1]}`; {', '.join(build[2:])}", ""]
        text += [f"{i}. {line['date']}: {line['why']}" for i, line in enumerate(lines, 1)]
        text += ["", *table(lines), ""]
        if len(lines) > 1:
            name = f"speed_guard_{number}.svg"
            plot(lines, folder / name)
            text += [f"![The counts of each record, compared with the first]({name})", ""]
    (folder / "speed_guard.md").write_text("\n".join(text).rstrip() + "\n")
