#!/usr/bin/env python3
"""How kernels over rows read and write a device's memory in bf16: 16 bytes at a time, by the code that nvcc makes of
them. Standard library alone.

  wide_rows.py --build BUILD    the folder of a CUDA build, for the options that its sources are compiled with

A thread that reads single elements of bf16 asks for 2 bytes: each row kernel has its accesses of 16 bytes, at least as
many as are said here, and none of two elements, which a compiler makes of pieces whose places it does not know.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ["blas/row_copies", "model/activation", "model/activation_rope", "model/expert_rows", "model/loss", "model/loss_split",
           "model/norm", "model/norm_gainless", "model/norm_split", "model/soft_cap"]
# Accesses of 16 bytes: reads, writes. A row of fp32, of sums or weights, is two for one of bf16.
KERNELS = {"copy_rows": (3, 2), "swiglu": (2, 1), "swiglu_backward": (3, 3), "gelu": (2, 2), "gelu_backward": (4, 4),
           "relu_squared": (1, 1), "relu_squared_backward": (2, 2), "add_bias": (3, 1), "bias_backward": (3, 2), "rope": (6, 2),
           "gather_tokens": (1, 1), "weighted_swiglu_backward": (6, 3), "softmax_cross_entropy": (3, 2), "embed": (3, 2),
           "embed_backward": (6, 4), "row_exponentials": (1, 0), "split_cross_entropy": (2, 2), "rms_norm": (4, 1),
           "add_rms_norm": (6, 2), "rms_norm_backward": (17, 6), "add": (2, 1), "add_layer_norm": (9, 2), "layer_norm_backward": (16, 5),
           "gainless_rms_norm": (4, 2), "gainless_rms_norm_backward": (5, 1), "split_row_squares": (1, 0), "split_rms_norm": (3, 1),
           "row_products": (4, 0), "split_rms_norm_backward": (6, 3), "soft_cap": (1, 1)}


def options(build):
    """Those that decide what a source means, of a source of the kernels."""
    commands = json.loads((build / "compile_commands.json").read_text())
    words = next(shlex.split(c["command"]) for c in commands if "sestina_kernels.dir/Unity" in c["command"])
    kept = []
    for number, word in enumerate(words):
        if word == "-isystem":
            kept += [word, words[number + 1]]
        elif re.match(r"-(D|I|std=|arch=|extended-lambda)", word):
            kept.append(word)
    return kept


def assembly(build):
    """What nvcc makes of the kernels: instructions of its virtual machine, by mangled name."""
    compiler = os.environ.get("NVCC_WRAPPER_DEFAULT_COMPILER", "g++")
    folders = os.pathsep.join([os.environ["PATH"], *(f"{home}/bin" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home)])
    nvcc = shutil.which("nvcc", path=folders) or sys.exit("wide_rows.py: no nvcc (PATH, CUDA_HOME, /usr/local/cuda)")
    openmp = "-fopenmp=libomp" if "clang" in compiler else "-fopenmp"
    with tempfile.TemporaryDirectory() as folder:
        source, made = pathlib.Path(folder) / "rows.cu", pathlib.Path(folder) / "rows.ptx"
        source.write_text("".join(f'#include "kernels/{name}.cpp"\n' for name in SOURCES))
        done = subprocess.run([nvcc, "-x", "cu", "-ptx", "-w", "-ccbin", compiler, "-Xcompiler", openmp, *options(build),
                               "-I", ROOT, "-o", made, source], cwd=build, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"wide_rows.py: nvcc ended with {done.returncode}:\n{done.stderr}")
        return dict(re.findall(r"\.entry (\S+)\((.*?)\n\}", made.read_text(), re.DOTALL))


def accesses(code):
    """Of a kernel: how often its code reads and writes so many bytes at once."""
    found = {"ld": collections.Counter(), "st": collections.Counter()}
    for what, many, bits in re.findall(r"\b(ld|st)\.global(?:\.nc)?(?:\.v(\d))?\.[a-z](\d+)", code):
        found[what][int(many or 1) * int(bits) // 8] += 1
    return found["ld"], found["st"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    codes = assembly(parser.parse_args().build.resolve())
    names = subprocess.run(["c++filt"], input="\n".join(codes), capture_output=True, text=True, check=True).stdout.splitlines()
    seen, wrong = set(), []
    for name, code in zip(names, codes.values()):
        kernel = re.search(r"sestina::(\w+)<Kokkos::Cuda, sestina::bf16>", name)
        if kernel is None or kernel[1] not in KERNELS:
            continue
        seen.add(kernel[1])
        (reads, writes), wanted = accesses(code), KERNELS[kernel[1]]
        print(f"{kernel[1]:28} 16 bytes: {reads[16]} reads, {writes[16]} writes; 2 bytes: {reads[2]}, {writes[2]}")
        if reads[16] < wanted[0] or writes[16] < wanted[1] or ".v2.u16" in code:
            wrong.append(f"{kernel[1]}: {reads[16]} reads and {writes[16]} writes of 16 bytes, {wanted[0]} and {wanted[1]} expected"
                         + (", and pairs of elements" if ".v2.u16" in code else ""))
    wrong += [f"{kernel}: not among the kernels" for kernel in KERNELS.keys() - seen]
    if wrong:
        sys.exit("wide_rows.py: " + "\n".join(wrong))


if __name__ == "__main__":
    main()
