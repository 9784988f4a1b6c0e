#!/usr/bin/env python3
"""Tables 1 to 5 of POET-X (Qiu et al. 2026: parts of its layer on an H100) next to the same parts on this host, in fp32: ours,
the way that it replaces written with our own kernels, and both with PyTorch where an interpreter that has it is given. Five to
ten minutes. Standard library alone, but for PyTorch.

  regression/bench/poet_parts.py --bench build/bench/bench_poet_parts [--torch PYTHON] [--only 1,3]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

# By table: the part, its sizes, what its columns are called, and the paper's two columns.
TABLES = {
    1: ("permute", "columns of 2048 rows permuted, by width", "by index", "product with a matrix", "PyTorch / its kernel",
        {(2048,): (1.621, 0.086), (4096,): (3.269, 0.167), (8192,): (6.584, 0.393)}),
    2: ("layer", "forward pass of a layer of 2048 rows, by width and block", "two permutations", "four", "four / two",
        {(2048, 256): None, (4096, 256): (15.858, 12.017), (4096, 512): (23.592, 13.421)}),
    3: ("blocks", "rows times blocks of 256 in a width of 4096, by rows", "a batch", "a whole matrix", "PyTorch / batch",
        {(2048,): (0.790, 0.334), (4096,): (1.525, 0.642), (8192,): (2.918, 1.266)}),
    5: ("series", "rotations, by block and number of blocks", "block by block in the cache", "pass by pass", "PyTorch / Triton",
        {(256, 64): (0.316, 0.107), (256, 128): (0.610, 0.204), (256, 192): (0.881, 0.297), (512, 64): (1.308, 0.660)}),
}


def peer(part, *sizes):
    """What PyTorch takes for (its own form of ours, the way that is replaced), in ms."""
    import torch

    def median(run):
        run()
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
        return 1e3 * statistics.median(seconds)

    torch.set_grad_enabled(False)
    rows, generator = 2048, torch.Generator().manual_seed(1)
    def normal(*shape): return torch.randn(*shape, generator=generator)
    def skew(count, b):
        q = torch.triu(0.01 * normal(count, b, b), 1)
        return q - q.mT

    def rotations(q):
        q2 = q @ q
        return torch.eye(q.shape[-1]) + 2 * (q + q2 + q2 @ q) + q2 @ q2

    if part == "permute":
        x, index = normal(rows, sizes[0]), torch.randperm(sizes[0], generator=generator)
        matrix = torch.eye(sizes[0])[:, index]
        return median(lambda: x[:, index]), median(lambda: x @ matrix)
    if part == "blocks":
        x, blocks = normal(sizes[0], 4096), 0.06 * normal(16, 256, 256)
        def batch(): return torch.bmm(x.view(-1, 16, 256).transpose(0, 1), blocks).transpose(0, 1).reshape(-1, 4096)
        return median(batch), median(lambda: x @ torch.block_diag(*blocks))
    if part == "series":
        q = skew(sizes[1], sizes[0])
        return None, median(lambda: rotations(q))
    d, b = sizes
    x, weight, q = normal(rows, d), 0.02 * normal(d, d), skew(d // b, b)
    places, other = (torch.randperm(d, generator=generator) for _ in range(2))
    back, other_back = torch.argsort(places), torch.argsort(other)

    def turned(y):
        return torch.bmm(y.view(-1, d // b, b).transpose(0, 1), rotations(q)).transpose(0, 1).reshape(-1, d)

    def two(): return turned(turned(x[:, places]) @ weight.T)[:, other]
    def four(): return turned((turned(x[:, places])[:, back] @ weight.T)[:, other])[:, other_back]
    return median(two), median(four)


def row(arguments, part, sizes, paper):
    words = [part, *map(str, sizes)]
    done = subprocess.run([arguments.bench, *words], capture_output=True, text=True, check=True)
    ours = json.loads(done.stdout)
    found = [None, None]
    if arguments.torch:
        command = [arguments.torch, __file__, "--peer", *words, "--threads", str(ours["threads"])]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    def number(x): return "-" if x is None else f"{x:.1f}"
    def times(a, b): return "-" if a is None or b is None else f"{a / b:.2f}"
    published = "-" if paper is None else f"{paper[0]} / {paper[1]} ({paper[0] / paper[1]:.2f})"
    return [" x ".join(map(str, sizes)), number(ours["ours"]), number(ours["plain"]), times(ours["plain"], ours["ours"]),
            number(found[0]), number(found[1]), times(found[0] or found[1], ours["ours"]), published]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench")
    parser.add_argument("--torch", help="a Python interpreter that has PyTorch")
    parser.add_argument("--only", default="1,2,3,5")
    parser.add_argument("--peer", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        import torch
        torch.set_num_threads(arguments.threads)
        print(json.dumps(peer(arguments.peer[0], *map(int, arguments.peer[1:]))))
        return
    for table in map(int, arguments.only.split(",")):
        part, what, ours, plain, published, sizes = TABLES[table]
        print(f"Table {table}: {what}; ms\n")
        print(f"| size | {ours} | {plain} | ratio | PyTorch, {ours} | PyTorch, {plain} | PyTorch's faster form over ours | paper: {published} |")
        print("|---|---|---|---|---|---|---|---|")
        for key, paper in sizes.items():
            print("| " + " | ".join(row(arguments, part, key, paper)) + " |", flush=True)
        print()
    if "3" in arguments.only.split(","):
        print("Table 4: memory for blocks of 256 in a width of 4096: a whole matrix 67.1 MB, a batch 4.2 MB, whatever the rows.")


sys.exit(main())
