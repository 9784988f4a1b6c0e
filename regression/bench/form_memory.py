#!/usr/bin/env python3
"""Peak memory of training in each form of weights, with each low-rank optimizer, and with preconditioners in memory and on
NVMe, next to what `plan` says. Standard library alone.

  regression/bench/form_memory.py --sestina build/bin/sestina [--models llama-60m,llama-350m] [--only SOAP]

A process's peak is its largest resident set in `bench step`, less what the same model with one dense layer takes beyond
its own plan: the program, its libraries and their buffers. Planned is what `plan` counts without the copy for a checkpoint, which no step makes. Rotations have the
largest blocks that divide all sides of the model, adapters the rank with as many parameters.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

BLOCKS = {"llama-60m": 32, "llama-130m": 256, "llama-350m": 16}
RANKS = {"llama-60m": 128, "llama-130m": 256, "llama-350m": 256}  # of GaLore, as published

# A refresh in every second update, so that those that are measured have some.
SOAP = ["optimizer.kind=soap", "optimizer.refresh.every=2"]
WORKER = [*SOAP, "optimizer.refresh.mode=async", "optimizer.refresh.staleness=1"]


def cells(model, folder):
    block = BLOCKS[model]
    nvme = ["optimizer.refresh.tier=nvme", f"optimizer.refresh.path={folder}"]
    poet = ["model.linear.form=poet-x", f"model.linear.block_size={block}"]
    galore = ["optimizer.kind=galore", f"optimizer.rank={RANKS[model]}"]
    return {
        "AdamW": [],
        "AdamW, moments in 8 bits": ["optimizer.state_bits=8"],
        "Muon": ["optimizer.kind=muon"],
        f"GaLore, rank {RANKS[model]}": galore,
        "GaLore, moments in 8 bits": [*galore, "optimizer.state_bits=8"],
        "GaLore, moments in 8 bits, projectors in 4": [*galore, "optimizer.state_bits=8", "optimizer.projector_bits=4"],
        "Q-GaLore: weights and moments in 8 bits, projectors in 4": [*galore, "optimizer.weight_bits=8", "optimizer.state_bits=8",
                                                                     "optimizer.projector_bits=4"],
        "Q-APOLLO: weights in 8 bits": [*galore, "optimizer.kind=apollo", "optimizer.weight_bits=8"],
        f"LoRA, rank {block // 2}": ["model.linear.form=lora", f"model.linear.rank={block // 2}"],
        f"POET-X fast, blocks of {block}": [*poet, "model.linear.variant=fast"],
        "POET-X mem": [*poet, "model.linear.variant=mem"],
        "POET-X xq": [*poet, "model.linear.variant=xq"],
        "SOAP": SOAP,
        "SOAP, preconditioners on NVMe": [*SOAP, *nvme],
        "SOAP, refreshed by a worker": WORKER,
        "SOAP, refreshed by a worker, preconditioners on NVMe": [*WORKER, *nvme],
    }


def run(arguments, deck, verb, keys):
    command = [arguments.sestina, *verb, "-i", deck, "--json", *arguments.keys, *keys]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def peak(arguments, deck, keys):
    return run(arguments, deck, ["bench", "step", "--steps", "1", "--warmup", "4"], keys)["memory_peak_bytes"]


def planned(arguments, deck, keys):
    rank, = run(arguments, deck, ["plan"], keys)["ranks"]
    return rank["bytes"]["total"] - rank["bytes"]["checkpoint_copy"]


def table(arguments, model, folder):
    deck = pathlib.Path(folder) / f"{model}.toml"
    deck.write_text(f'[model]\npreset = "{model}"\n[data]\nsequence_length = 256\n[train]\nglobal_batch = 4\n'
                    f'precision = "{arguments.precision}"\n')
    layer = ["model.num_hidden_layers=1"]
    libraries = peak(arguments, deck, layer) - planned(arguments, deck, layer)
    print(f"\n{model}, {arguments.precision}, 4 sequences of 256 tokens; program and libraries {libraries / 1e6:.0f} MB\n\n"
          "| | planned, MB | measured, MB | difference | next to the first |\n|---|---|---|---|---|", flush=True)
    first = None
    for name, keys in cells(model, folder).items():
        if not name.startswith(arguments.only):
            continue
        expected, found = planned(arguments, deck, keys), peak(arguments, deck, keys) - libraries
        first = first or found
        print(f"| {name} | {expected / 1e6:.1f} | {found / 1e6:.1f} | {100 * (found / expected - 1):+.1f} % | "
              f"{found / first:.2f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sestina", required=True)
    parser.add_argument("--models", default="llama-60m,llama-350m")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--only", default="", help="rows whose names begin so, the last column next to the first of them")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for model in arguments.models.split(","):
            table(arguments, model, folder)


if __name__ == "__main__":
    main()
