#!/usr/bin/env python3
"""Loads a model that `sestina checkpoint export` wrote with transformers and prints its mean loss over windows of a token file.

Run by hand (needs torch, transformers, numpy):
    hf_roundtrip.py EXPORTED_FOLDER MEGATRON_PREFIX --sequence 64 --windows 32 [--expect LOSS --tolerance 1e-5]
Window i is stream[i * sequence : (i + 1) * sequence + 1], as in an evaluation with data.shuffle = false. With
--compare FOLDER the weights are also compared bit for bit with another folder's (an import that was exported again).
"""
import argparse
import struct
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def read_stream(prefix):
    with open(prefix + ".idx", "rb") as file:
        magic, version, code = struct.unpack("<9sQB", file.read(18))
    assert magic == b"MMIDIDX\0\0" and version == 1, "not a Megatron index"
    return np.fromfile(prefix + ".bin", dtype=DTYPES[code]).astype(np.int64)


def mean_loss(model, stream, sequence, windows, batch):
    total = 0.0
    for begin in range(0, windows, batch):
        rows = [stream[i * sequence : (i + 1) * sequence + 1] for i in range(begin, min(begin + batch, windows))]
        tokens = torch.from_numpy(np.stack(rows))
        with torch.no_grad():
            logits = model(tokens[:, :-1]).logits.double()
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
        total += losses.item()
    return total / (windows * sequence)


def load(folder):
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    for kind, names in report.items():
        if names:
            sys.exit(f"{folder}: {kind}: {names}")
    return model.eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("prefix")
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--expect", type=float)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--compare")
    options = parser.parse_args()

    model = load(options.folder)
    stream = read_stream(options.prefix)
    windows = min(options.windows, (len(stream) - 1) // options.sequence)
    loss = mean_loss(model, stream, options.sequence, windows, options.batch)
    print(f"{type(model).__name__}: mean loss {loss:.9f} over {windows} windows of {options.sequence}")
    failed = options.expect is not None and not abs(loss - options.expect) <= options.tolerance
    if options.expect is not None:
        print(f"expected {options.expect:.9f}, difference {abs(loss - options.expect):.2e}: {'FAILED' if failed else 'ok'}")
    if options.compare:
        other = load(options.compare).state_dict()
        ours = model.state_dict()
        different = sorted(name for name in ours.keys() | other.keys()
                           if name not in ours or name not in other or not torch.equal(ours[name], other[name]))
        print(f"weights: {len(ours)} tensors, " + (f"different: {different}" if different else "bit-equal"))
        failed = failed or bool(different)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
