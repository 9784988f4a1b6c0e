#!/usr/bin/env python3
"""Table 9 of POET-X (Qiu et al. 2026: peak memory of one H100, one sequence) next to what `plan` counts for the same models. It
trains nothing and takes seconds. Standard library alone.

  regression/bench/poet_memory.py --sestina build/bin/sestina [KEY=VALUE ...]

Planned is all that a rank needs in a step: the copy that a checkpoint is written from is left out. The paper trains in bf16
alone; Sestina keeps masters, gradients and moments in fp32, so that the same methods differ by what those take: a second
table has them for one of the models. Ranks of GaLore and APOLLO are not in the paper: left out here.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

LENGTHS = (512, 1024, 2048)
MODELS = ("llama-3b", "llama-8b", "llama-13b")
OOM = None


def poet(variant, block, *more):
    return ["model.linear.form=poet-x", f"model.linear.variant={variant}", f"model.linear.block_size={block}", *more]


def lora(rank):
    return ["model.linear.form=lora", f"model.linear.rank={rank}"]


# Keys of a method, and the paper's GB by model and length; () where it has no such row.
METHODS = {
    "AdamW": ([], (28.74, 28.78, 31.43, 78.89, 76.34, 78.69, OOM, OOM, OOM)),
    "Muon": (["optimizer.kind=muon"], (18.62, 19.27, 21.82, 50.30, 53.46, 54.98, 76.32, 77.02, OOM)),
    "LoRA, rank 160": (lora(160), (13.60, 16.79, 22.68, 27.90, 33.63, 43.78, 42.48, 49.78, 63.50)),
    "LoRA, rank 320": (lora(320), (16.81, 19.50, 25.84, 33.77, 38.50, 49.82, 50.08, 57.53, 71.55)),
    "POET-X fast, 256": (poet("fast", 256), (13.41, 16.31, 21.49, 28.65, 33.14, 43.08, 42.77, 48.95, 61.87)),
    "POET-X fast, 512": (poet("fast", 512), (17.77, 20.75, 26.06, 36.08, 41.94, 50.81, 53.11, 59.12, 71.88)),
    "POET-X mem, 256": (poet("mem", 256), (11.96, 13.28, 15.47, 25.94, 27.87, 31.74, 35.65, 41.62, 47.21)),
    "POET-X mem, 512": (poet("mem", 512), (16.31, 18.33, 20.48, 32.93, 35.94, 40.44, 49.63, 53.26, 59.02)),
    "POET-XQ, 256": (poet("xq", 256), (10.77, 12.23, 16.15, 20.62, 23.59, 29.83, 30.07, 34.58, 43.59)),
    "POET-XQ, 512": (poet("xq", 512), (14.48, 16.71, 20.48, 27.07, 30.26, 36.91, 39.12, 43.98, 53.17)),
    "POET-X mem, 256, merges rounded to bf16": (poet("mem", 256, "model.linear.merge_residual=false"), ()),
    "POET-X mem, 256, fully stochastic": (poet("mem", 256, "model.linear.sampling=fully-stochastic"), ()),
    "POET-XQ, 256, weights in 4 bits": (poet("xq", 256, "model.linear.base_bits=4"), ()),
    "POET-XQ, 256, weights in 4 bits, merges compensated": (poet("xq", 256, "model.linear.base_bits=4",
                                                                 "model.linear.merge_residual=true"), ()),
    "AdamW, moments in 8 bits": (["optimizer.state_bits=8"], ()),
    "POET-X mem, 256, moments in 8 bits": (poet("mem", 256, "model.linear.state_bits=8", "optimizer.state_bits=8",
                                                "optimizer.state_block=8"), ()),
}


def plan(arguments, folder, model, length, keys):
    """The bytes of the one rank by what they are for."""
    deck = pathlib.Path(folder) / "deck.toml"
    deck.write_text(f'[model]\npreset = "{model}"\n[data]\nsequence_length = {length}\n'
                    '[train]\nglobal_batch = 1\nprecision = "bf16"\n')
    command = [arguments.sestina, "plan", "-i", deck, "--json", *keys, *arguments.keys]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    rank, = json.loads(done.stdout)["ranks"]
    return rank["bytes"]


def needed(kinds):
    return kinds["total"] - kinds["checkpoint_copy"]


def cell(gigabytes, published):
    """Ours / theirs (ours over theirs)."""
    if published == ():
        return f"{gigabytes:.1f}"
    return f"{gigabytes:.1f} / OOM" if published is OOM else f"{gigabytes:.1f} / {published:.1f} ({gigabytes / published:.2f})"


def row(arguments, folder, name):
    keys, published = METHODS[name]
    cells, training = [], []
    for place, (model, length) in enumerate((m, n) for m in MODELS for n in LENGTHS):
        kinds = plan(arguments, folder, model, length, keys)
        cells.append(cell(needed(kinds) / 1e9, published[place] if published else ()))
        if (model, length) == ("llama-8b", 1024):
            training = [kinds[kind] / 1e9 for kind in
                        ("weights", "master_weights", "gradients", "optimizer", "activations", "workspace")]
    return cells, training


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sestina", required=True)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            rows[name] = row(arguments, folder, name)
    heads = [f"{model[6:].upper()}, {length}" for model in MODELS for length in LENGTHS]
    print(f"| GB: planned / paper | {' | '.join(heads)} |\n|{'---|' * (1 + len(heads))}")
    for name, (cells, _) in rows.items():
        print(f"| {name} | {' | '.join(cells)} |")
    print("\n| planned GB of 8B, 1024 | weights | masters | gradients | moments | activations | scratch |\n|" + "---|" * 7)
    for name, (_, kinds) in rows.items():
        print(f"| {name} | {' | '.join(f'{kind:.1f}' for kind in kinds)} |")


if __name__ == "__main__":
    main()
