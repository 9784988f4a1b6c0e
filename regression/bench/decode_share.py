#!/usr/bin/env python3
"""Which share of the memory's bandwidth greedy decoding reaches: the bytes of the weights that a token reads, times tokens per
second, next to the bandwidth that `sestina bench kernels` measures right before. Standard library alone; by hand:

    decode_share.py SESTINA HF_FOLDER [--rounds 5 --tokens 192 --threads 2]

The folder holds a model whose weights are many times larger than the last-level cache. On a machine that does other work
too, only pairs whose bandwidth is near the largest of all say something.
"""
import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile

DECK = """[model]
preset = "llama-8m"
[data]
sequence_length = 64
[train]
global_batch = 1
[run]
steps = 1
"""


def weights(folder):
    """Elements that one token reads: all but the rows of the embedding, unless the head is the same table."""
    with open(f"{folder}/model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    sizes = {}
    for name, entry in header.items():
        if name != "__metadata__":
            sizes[name] = 1
            for n in entry["shape"]:
                sizes[name] *= n
    table = next((n for n in sizes if n.endswith("embed_tokens.weight")), None)
    tied = "lm_head.weight" not in sizes
    return sum(sizes.values()) - (0 if tied or table is None else sizes[table])


def call(program, threads, *words, text=None):
    surroundings = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive")
    return subprocess.run([program, *words], input=text, capture_output=True, text=True, check=True, env=surroundings).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as deck:
        deck.write(DECK)
        deck.flush()
        measure(options, deck.name)


def measure(options, deck):
    elements = weights(options.folder)
    pairs = {"fp32": [], "bf16": []}
    for number in range(options.rounds):
        for precision, width in (("fp32", 4), ("bf16", 2)):
            out = call(options.program, options.threads, "bench", "kernels", "-i", deck, "--steps", "1", "--warmup", "0")
            bandwidth = float(re.search(r"memory ([\d.]+) GB/s", out).group(1))
            out = json.loads(call(options.program, options.threads, "generate", "--hf", options.folder, "--prompt", "abcdefgh" * 8, "--json",
                                  "--temperature", "0", "--tokens", str(options.tokens), "data.tokenizer=bytes", f"train.precision={precision}",
                                  "run.space=host", f"run.threads={options.threads}"))
            read = 1e-9 * width * elements * out["tokens_per_s"]
            pairs[precision].append((bandwidth, read))
            print(f"{precision}  {out['tokens_per_s']:6.1f} tokens/s, weights read at {read:5.1f} GB/s of {bandwidth:5.1f}: {100 * read / bandwidth:3.0f} %",
                  flush=True)
    for precision, found in pairs.items():
        shares = sorted(read / bandwidth for bandwidth, read in found)
        print(f"{precision}  share of the bandwidth {100 * statistics.median(shares):.0f} % ({100 * shares[0]:.0f} to {100 * shares[-1]:.0f}); "
              f"best rate {max(read for _, read in found):.1f} GB/s, best bandwidth {max(bandwidth for bandwidth, _ in found):.1f} GB/s")


if __name__ == "__main__":
    sys.exit(main())
