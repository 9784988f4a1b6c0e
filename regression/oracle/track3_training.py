#!/usr/bin/env python3
"""Twenty updates of the contest's model (modded-nanogpt, track 3) in plain PyTorch, without Sestina.

Prints the numbers of regression/cases/track3/reference.json: losses and norms of gradients before each update, for the
model, the optimizers and the text of the deck in that folder. First weights are Sestina's, which are functions of seed,
name and index (kernels/base/random.cpp). Needs PyTorch; computes in double.

  track3_training.py > regression/cases/track3/reference.json
"""
import datetime
import json
import math
import os
import struct

import torch

torch.set_default_dtype(torch.float64)
HERE = os.path.dirname(os.path.abspath(__file__))
SEED, STEPS, BATCH, LENGTH = 5, 20, 8, 64
WIDTH, LAYERS, HEADS, WORDS = 64, 2, 2, 256
HEAD_DIM, MIXED = WIDTH // HEADS, 4 * WIDTH
EPS, BASE, SCALE, CAP = 1.1920929e-7, 1024.0, 0.12, 15.0
MASK = (1 << 64) - 1


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def stream_of(seed, name):
    code = 0xCBF29CE484222325
    for byte in name.encode():
        code = ((code ^ byte) * 0x100000001B3) & MASK
    return mix((code + mix((seed + 0x9E3779B97F4A7C15) & MASK)) & MASK)


def philox(key, high, low):
    """Philox 4x32 of ten rounds (Salmon et al. 2011)."""
    c = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def normals(name, rows, cols, scale):
    """First weights: Box and Muller's pairs, rounded to single precision."""
    values, stream = [], stream_of(SEED, name)
    for pair in range(rows * cols // 2):
        c = philox(stream, 1, pair)
        u, v = (((c[i + 1] << 32 | c[i]) >> 11) * 2.0**-53 for i in (0, 2))
        radius, angle = math.sqrt(-2 * math.log(1 - u)), 2 * math.pi * v
        values += [radius * math.cos(angle), radius * math.sin(angle)]
    single = [struct.unpack("f", struct.pack("f", scale * value))[0] for value in values]
    return torch.tensor(single).reshape(rows, cols).requires_grad_()


def parameters():
    fan_in = 1 / math.sqrt(3 * WIDTH)
    p = {"model.embed_tokens.weight": normals("model.embed_tokens.weight", WORDS, WIDTH, 1.0)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in "qkv":
            p[f"{at}{name}"] = normals(f"{at}self_attn.{name}_proj.weight", WIDTH, WIDTH, fan_in)
        p[f"{at}up"] = normals(f"{at}mlp.up_proj.weight", MIXED, WIDTH, fan_in)
        p[f"{at}o"] = torch.zeros(WIDTH, WIDTH, requires_grad=True)
        p[f"{at}down"] = torch.zeros(WIDTH, MIXED, requires_grad=True)
        for name in ("q", "k", "v", "o", "down"):
            p[f"{at}{name}.bias"] = torch.zeros(WIDTH, requires_grad=True)
        p[f"{at}up.bias"] = torch.zeros(MIXED, requires_grad=True)
        for name in ("norm1", "norm2"):
            p[f"{at}{name}"] = torch.ones(WIDTH, requires_grad=True)
    p["embed_norm"] = torch.ones(WIDTH, requires_grad=True)
    p["norm"] = torch.ones(WIDTH, requires_grad=True)
    p["lm_head.weight"] = torch.zeros(WORDS, WIDTH, requires_grad=True)
    p["lm_head.bias"] = torch.zeros(WORDS, requires_grad=True)
    return p


def rms(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def rotate(x):
    """Turns the first half of the pairs (i, i + HEAD_DIM / 2); frequencies go from 1 to 1 / BASE."""
    turning = HEAD_DIM // 4
    frequency = torch.cat([BASE ** -(torch.arange(turning) / (turning - 1.0)), torch.zeros(turning)])
    angle = torch.outer(torch.arange(x.shape[-2]).double(), frequency)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def linear(p, name, x):
    return x @ p[name].T + p[f"{name}.bias"]


def logits_of(p, tokens):
    x = rms(p["model.embed_tokens.weight"][tokens]) * p["embed_norm"]
    future = torch.ones(LENGTH, LENGTH).triu(1).bool()
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        h = rms(x) * p[f"{at}norm1"]
        q, k, v = (linear(p, at + n, h).reshape(-1, LENGTH, HEADS, HEAD_DIM).transpose(1, 2) for n in "qkv")
        scores = SCALE * rotate(rms(q)) @ rotate(rms(k)).transpose(-1, -2)
        mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        x = x + linear(p, f"{at}o", mixed.transpose(1, 2).reshape(x.shape))
        h = rms(x) * p[f"{at}norm2"]
        x = x + linear(p, f"{at}down", linear(p, f"{at}up", h).relu().square())
    z = (rms(x) * p["norm"]) @ p["lm_head.weight"].T + p["lm_head.bias"]
    return CAP * z * torch.rsqrt(z.square() + CAP**2)


def newton_schulz(x):
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def is_matrix(name, value):
    return value.dim() == 2 and name.startswith("model.layers")


def muon(weight, state, factor):
    grad, rate = weight.grad, 0.025 * factor
    state["m"] = 0.95 * state.get("m", torch.zeros_like(grad)) + 0.05 * grad
    update = newton_schulz(0.05 * grad + 0.95 * state["m"]) * max(1, grad.shape[0] / grad.shape[1]) ** 0.5
    weight.mul_(1 - rate * 0.05).sub_(rate * update)


def adamw(name, weight, state, factor, t):
    rates = {"model.embed_tokens.weight": 0.7, "lm_head.weight": 0.004}
    grad, rate = weight.grad, rates.get(name, 0.015) * factor
    state["m"] = 0.8 * state.get("m", torch.zeros_like(grad)) + 0.2 * grad
    state["v"] = 0.95 * state.get("v", torch.zeros_like(grad)) + 0.05 * grad.square()
    if weight.dim() == 2:
        weight.mul_(1 - rate * 0.001)
    weight.sub_(rate * (state["m"] / (1 - 0.8**t)) / ((state["v"] / (1 - 0.95**t)).sqrt() + 1e-10))


def main():
    text = open(os.path.join(HERE, "..", "data", "harbour.txt"), "rb").read()
    p = parameters()
    state = {name: {} for name in p}
    losses, norms = {}, {}
    for t in range(1, STEPS + 1):
        first = (t - 1) * BATCH * LENGTH
        windows = [text[first + i * LENGTH : first + (i + 1) * LENGTH + 1] for i in range(BATCH)]
        tokens = torch.tensor([list(window) for window in windows])
        logits = logits_of(p, tokens[:, :-1]).reshape(-1, WORDS)
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].reshape(-1))
        for weight in p.values():
            weight.grad = None
        loss.backward()
        losses[str(t)] = loss.item()
        norms[str(t)] = math.sqrt(sum(weight.grad.square().sum().item() for weight in p.values()))
        factor = 1 if t <= 6 else 1 - (t - 6) / 14  # flat, then a line to 0 at update 20
        with torch.no_grad():
            for name, weight in p.items():
                if is_matrix(name, weight):
                    muon(weight, state[name], factor)
                else:
                    adamw(name, weight, state[name], factor, t)
    run = {"loss": losses, "grad_norm": norms}
    print(json.dumps({"reason": f"PyTorch {torch.__version__}, regression/oracle/track3_training.py",
                      "date": datetime.date.today().isoformat(), "metrics": {"{work}/run": run}}, indent=1))


if __name__ == "__main__":
    main()
