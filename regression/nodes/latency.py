"""Update steps of ranks that are far from one another (hub.py), by hand. Two programs, or two sets of keys, run in turn.

    python3 regression/nodes/latency.py --program build/bin/sestina --program other/sestina --ranks 8 --delay-ms 1 [KEY=VALUE ...]

Standard library alone (Python 3.11), for root; prints the median step time of each."""

import argparse
import collections
import pathlib
import statistics
import tempfile

from hub import Hub

DECK = pathlib.Path(__file__).resolve().parents[2] / "inputs/tiny_ranks.toml"


def step_times(hub, folder, program, keys, steps):
    lines = hub.train(folder, program, DECK, [f"run.steps={steps}", f"parallel.dp={len(hub.spaces)}", "parallel.tp=1", "checkpoint.every=0", *keys])
    return [line["step_s"] for line in lines][steps // 4:], lines[-1]["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", required=True)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--delay-ms", type=float, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("keys", nargs="*")
    asked = parser.parse_args()
    hub, seen = Hub(asked.ranks, asked.delay_ms / 1000), collections.defaultdict(list)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(asked.rounds):
                for program in asked.program:
                    times, loss = step_times(hub, folder, program, asked.keys, asked.steps)
                    seen[program].append((statistics.median(times), loss))
    finally:
        hub.remove()
    for program, rounds in seen.items():
        print(f"{program}: {1e3 * statistics.median(t for t, _ in rounds):.1f} ms a step (medians of rounds: "
              + ", ".join(f"{1e3 * t:.1f}" for t, _ in rounds) + f"), loss {rounds[0][1]}")


if __name__ == "__main__":
    main()
