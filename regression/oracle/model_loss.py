"""Loss of a Hugging Face folder as transformers computes it, to be held next to Sestina's own: run by hand on an exported
checkpoint and on the folder it was imported from. Needs torch, transformers, numpy, h5py.

usage: model_loss.py FOLDER TOKENS [--batches N]
TOKENS is a .npy array (windows, T + 1) of integers, or an .h5 file with a dataset "tokens" (steps, batch, T + 1).
"""
import argparse

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def windows(path):
    if path.endswith(".npy"):
        return np.load(path)
    import h5py

    tokens = h5py.File(path, "r")["tokens"][()]
    return tokens.reshape(-1, tokens.shape[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("tokens")
    parser.add_argument("--batches", type=int, default=4, help="windows to read")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32).eval()
    rows = torch.from_numpy(windows(arguments.tokens)[: arguments.batches].astype(np.int64))
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits.double()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{type(model).__name__} parameters {parameters} windows {len(rows)} loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
