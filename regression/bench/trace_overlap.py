#!/usr/bin/env python3
"""What a trace (metrics.trace) says of overlap: for each kind of exchange how often it ran in an update, how long it was
in flight and how long a rank did nothing but wait for it. Means over ranks and updates. Standard library alone.

  regression/bench/trace_overlap.py runs/NAME/trace.json
"""

import collections
import json
import sys


def kind_of(name):
    words = name.split()
    return " ".join(words[:-1]) if words[-1].isdigit() else name


def main():
    with open(sys.argv[1]) as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    ranks = len({event["pid"] for event in events})
    updates = sum(event["name"] == "loss and norm" for event in events) / ranks
    flying, waiting, number = collections.Counter(), collections.Counter(), collections.Counter()
    for event in events:
        name = kind_of(event["name"])
        if event["cat"] == "exchange":
            flying[name] += event["dur"]
            number[name] += 1
        elif event["cat"] == "wait":
            waiting[name.removeprefix("wait for ")] += event["dur"]
    per = ranks * updates
    print("| exchange | in an update | in flight, ms | waited for, ms | under computation |")
    print("|---|---|---|---|---|")
    for name, microseconds in flying.most_common():
        waited = waiting[name] if name in waiting else microseconds
        share = f"{100 * (1 - waited / microseconds):.0f} %" if name in waiting else "-"
        print(f"| {name} | {number[name] / per:.0f} | {microseconds / per / 1e3:.2f} | {waited / per / 1e3:.2f} | {share} |")


if __name__ == "__main__":
    main()
