"""Ten run directories as training leaves them: one diverged, one resumed, several ranks, per-tensor diagnostics, checkpoints
that were removed, odd names, an old file without its first line, a cut last line. `make_runs.py FOLDER`."""
import json
import math
import pathlib
import random
import sys

DECK = """[run]
name = "{name}"
steps = {steps}
[data]
sequence_length = 128
[train]
global_batch = 8
precision = "fp32"
[optimizer]
kind = "{kind}"
lr = {lr}
[parallel]
dp = {ranks}
tp = 1
pp = 1
"""
RUNS = [  # name, optimizer, lr, steps, ranks
    ("adamw", "adamw", 3e-3, 400, 1), ("muon", "muon", 2e-2, 2000, 1), ("soap_with_a_rather_long_name_of_a_run", "soap", 3e-3, 600, 1),
    ("<b onload=fail()>& \"quoted\" </script>", "shampoo", 1e-3, 500, 4), ("kl_shampoo", "kl-shampoo", 2e-3, 12000, 8),
    ("diverged", "galore", 0.1, 330, 1), ("short", "normuon", 1e-3, 30, 1), ("resumed", "adamuon", 2e-2, 800, 6),
    ("cut", "apollo", 5e-3, 400, 1), ("muon_high", "muon", 6e-2, 400, 1)]
TENSORS = ["model.embed_tokens.weight"] + [
    f"model.layers.{layer}.{name}.weight" for layer in range(4)
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj", "input_layernorm")]


def train_line(run, step, noise):
    name, kind, lr, steps, ranks = RUNS[run]
    loss = 1.4 + 0.1 * run + 4.2 * math.exp(-step / (60 + 15 * run)) + 0.9 * math.exp(-step / 400) + noise.gauss(0, 0.05)
    if name == "diverged" and step > 260:
        loss += 0.02 * (step - 260)**1.2
    refresh = 0.08 if "sha" in kind and step % 10 == 0 else 0
    parts = {"data_s": 0.001, "forward_backward_s": 0.05 + 0.005 * run, "reduce_s": 0.004 * ranks if ranks > 1 else 1e-6,
             "optimizer_s": 0.01 + 0.01 * run, "refresh_wait_s": refresh, "gather_s": 0.002 * ranks if ranks > 1 else 0}
    step_s = sum(parts.values()) + abs(noise.gauss(0, 0.003)) + (1.5 if step % 173 == 0 else 0)
    line = {"kind": "train", "step": step, "tokens": step * 1024, "loss": loss, "lr": lr * min(1, step / 20),
            "grad_norm": 1 / (1 + step / 100) + abs(noise.gauss(0, 0.1)) + (30 if step == 77 else 0), "step_s": step_s,
            "tokens_per_s": 1024 / step_s, "preconditioner_age_max": step % 10 if refresh or kind == "soap" else 0,
            "skipped_steps": 0, "memory_peak_bytes": 140_000_000 + 10_000_000 * run, "tflops": 0.01 / step_s, "mfu": None, "energy_j": None}
    if kind == "kl-shampoo":
        line |= {"staleness": [step % 4, (step + 1) % 4, 0], "preconditioner_age_mean_by_stage": [step % 10 / 2, step % 10, 1.5]}
        if step % 10 == 0:
            line |= {"drift": [0.02, None, 0], "cosine": [0.5, None, 1]}
    return line | parts


def lines(run, folder):
    name, kind, _, steps, ranks = RUNS[run]
    noise = random.Random(run)
    if run != 3:
        yield {"kind": "run", "step": 0, "version": "0.1.0", "commit": "4b91dea", "hosts": ["node1"] * ranks, "ranks": ranks, "threads": 2,
               "command_line": f"sestina train -i tiny_{kind}.toml", "started": f"2026-01-01T03:0{run}:00Z"}
    numbers = list(range(1, 451)) + [None] + list(range(401, steps + 1)) if name == "resumed" else range(1, steps + 1)
    for step in numbers:
        if step is None:
            yield {"kind": "rewind", "step": 400, "to_step": 400}
            continue
        train = train_line(run, step, noise)
        yield train
        if step % 50 == 0:
            yield {"kind": "val", "step": step, "tokens": step * 1024, "loss": train["loss"] + 0.1, "bits_per_byte": train["loss"] * 1.4, "seconds": 0.1}
        if step % 100 == 0:
            path = f"checkpoints/step_{step:08}"
            yield {"kind": "checkpoint", "step": step, "path": path, "seconds": 0.08, "bytes": 9_600_000, "error": "disk full" if run == 1 and step == 300 else None}
            if step > steps - 250:
                (folder / path).mkdir(parents=True, exist_ok=True)
                (folder / path / "manifest.json").write_text("{}")
            if ranks > 1:
                planned = [1000 + noise.randint(-30, 80) for _ in range(ranks)]
                yield {"kind": "loads", "step": step, "optimizer_s": [1e-5 * cost * noise.uniform(0.92, 1.1) for cost in planned], "planned": planned}
        if run in (1, 2) and step % 100 == 0:
            yield {"kind": "updates", "step": step, "tensors": [
                {"pattern": "model.embed_tokens.weight", "rule": "adamw", "split": "elements", "owner": "0", "calls": 100, "orthogonality_defect": None,
                 "update_rms": 1e-4, "update_ratio": 5e-3, "decay": 3e-4, "layers": []},
                {"pattern": "model.layers.*.mlp.down_proj.weight", "rule": kind, "split": "whole", "owner": "0-1", "calls": 100, "orthogonality_defect": 0.25,
                 "update_rms": 2e-4, "update_ratio": 0.01, "decay": 3e-4, "layers": [step / 1e5, 0.01, None, 0.02]}]}
        if run == 2 and step % 50 == 0:
            yield {"kind": "rotations", "step": step, "tensors": [
                {"pattern": "model.layers.*.mlp.down_proj.weight", "largest_q": 0.1 + step / 1e4, "defect": 1e-4, "applied_defect": 2e-3,
                 "sigma_max": 2 - step / 1e3, "sigma_min": 0.1, "sigma_rms": 1.0, "layers": [0.1, 0.1 + step / 1e4, None, 0.05]}]}
        if run in (1, 2, 9) and step % 20 == 0:
            yield {"kind": "tensors", "step": step, "tensors": {
                tensor: {"weight_rms": 0.02 + 1e-4 * step / (1 + i % 5), "update_rms": 1e-4 * (1.3 + math.sin(step / 50 + i)), "spectral_norm": 1 + i / 10}
                for i, tensor in enumerate(TENSORS)}}
    if name == "diverged":
        yield train_line(run, steps + 1, noise) | {"loss": None, "grad_norm": None}
        yield {"kind": "event", "step": steps + 1, "what": "diverged", "detail": "loss nan and gradient norm inf"}


def make(root):
    folders = []
    for run, (name, kind, lr, steps, ranks) in enumerate(RUNS):
        folder = pathlib.Path(root) / f"{run} {name.replace('/', '')}"
        folder.mkdir(parents=True)
        (folder / "deck.resolved.toml").write_text(DECK.format(name=f"run {run}", steps=steps, kind=kind, lr=lr, ranks=ranks))
        text = "".join(json.dumps(line) + "\n" for line in lines(run, folder))
        (folder / "metrics.jsonl").write_text(text + ('{"kind":"tra' if name == "cut" else ""))
        folders.append(folder)
    return folders


if __name__ == "__main__":
    make(sys.argv[1])
