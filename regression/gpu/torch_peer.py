#!/usr/bin/env python3
"""The step of a Llama by PyTorch on a GPU, to compare with: compiled, attention of the library, bf16 with fp32 masters, the
fused AdamW of torch or Newton-Schulz by matrices of one shape. Prints one JSON object with the median step time."""

import argparse
import json
import statistics

import torch
from torch import nn
from torch.nn import functional


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in {"hidden": 768, "inner": 2048, "layers": 12, "heads": 12, "vocabulary": 32000, "sequence": 1024, "batch": 32,
                        "steps": 20, "warmup": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    return parser.parse_args()


class Layer(nn.Module):
    def __init__(self, hidden, inner, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.gate_up, self.down = nn.Linear(hidden, 2 * inner, bias=False), nn.Linear(inner, hidden, bias=False)

    def forward(self, x, cosine, sine):  # x (B, T, D)
        batch, length, hidden = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

        def turned(y):
            low, high = y.chunk(2, -1)
            return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)

        y = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, hidden))
        gate, up = self.gate_up(self.between(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.embedding = nn.Embedding(a.vocabulary, a.hidden)
        self.layers = nn.ModuleList(Layer(a.hidden, a.inner, a.heads) for _ in range(a.layers))
        self.norm, self.head = nn.RMSNorm(a.hidden), nn.Linear(a.hidden, a.vocabulary, bias=False)
        size = a.hidden // a.heads
        angles = torch.outer(torch.arange(a.sequence), 10000.0 ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        cosine, sine = self.cosine.to(torch.bfloat16), self.sine.to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Muon:
    """Momentum of 0.95 and five steps of Newton-Schulz in bf16, of all matrices of one shape at a time."""

    def __init__(self, matrices):
        self.shapes = {}
        for matrix in matrices:
            self.shapes.setdefault(matrix.shape, []).append(matrix)
        self.momenta = {shape: torch.zeros(len(some), *shape, device="cuda") for shape, some in self.shapes.items()}
        self.direction = torch.compile(self.direction)

    @staticmethod
    def direction(momentum, gradient):
        momentum.lerp_(gradient, 0.05)
        x = gradient.lerp(momentum, 0.95).bfloat16()
        tall = x.shape[1] > x.shape[2]
        x = x.mT if tall else x
        x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
        return x.mT if tall else x

    @torch.no_grad()
    def step(self):
        for shape, some in self.shapes.items():
            update = self.direction(self.momenta[shape], torch.stack([m.grad for m in some]))
            torch._foreach_add_(some, list(update.float().unbind()), alpha=-0.02)


def main():
    a = arguments()
    torch.manual_seed(0)
    model = Llama(a).cuda()
    matrices = [p for p in model.layers.parameters() if p.ndim == 2] if a.optimizer == "muon" else []
    chosen = {id(p) for p in matrices}
    optimizers = [torch.optim.AdamW([p for p in model.parameters() if id(p) not in chosen], lr=1e-4, fused=True)]
    if matrices:
        optimizers.append(Muon(matrices))
    compiled = torch.compile(model)
    tokens, targets = torch.randint(0, a.vocabulary, (2, a.batch, a.sequence), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    for _ in range(a.warmup):
        step()
    times = []
    for _ in range(a.steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    print(json.dumps({"step_ms": statistics.median(times), "torch": torch.__version__, "device": torch.cuda.get_device_name()}))


if __name__ == "__main__":
    main()
