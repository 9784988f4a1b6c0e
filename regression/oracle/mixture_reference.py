"""Makes regression/golden/models/qwen3-moe-untied and mixtral-balanced: small mixtures of experts with random weights, and
what transformers computes with them in double: logits, loss, every gradient, thirty AdamW updates. Tolerances are 8 times
what the same code in fp32 is away. The second model has one layer, and its load-balancing loss is in the gradients. Run by
hand; needs torch, transformers 5, numpy, h5py.

usage: mixture_reference.py FOLDER    (regression/golden/models)
"""
import math
import pathlib
import shutil
import sys

import h5py
import numpy as np
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

BATCH, SEQUENCE, STEPS, WORDS = 4, 32, 30, 97
HYPER = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "warmup_steps": 5,
         "min_lr_ratio": 0.1, "clip_norm": 1.0}
SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS,
         "max_position_embeddings": 64, "num_experts_per_tok": 2, "initializer_range": 0.08, "bos_token_id": None,
         "eos_token_id": 0, "pad_token_id": None, "attn_implementation": "eager", "experts_implementation": "eager"}


def qwen():
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(
        num_hidden_layers=2, head_dim=16, intermediate_size=48, moe_intermediate_size=24, num_experts=8,
        norm_topk_prob=True, rope_theta=1e6, tie_word_embeddings=False, **SIZES))


def mixtral():
    return MixtralForCausalLM(MixtralConfig(
        num_hidden_layers=1, intermediate_size=40, num_local_experts=4, sliding_window=None,
        router_aux_loss_coef=0.05, output_router_logits=True, **SIZES))


def by_expert(name, tensor, is_mixtral):
    """Yields the tensors of files for one of the model, which stacks its experts."""
    block = name.replace(".mlp.", ".block_sparse_moe.") if is_mixtral else name
    words = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    if name.endswith("experts.gate_up_proj"):
        half = tensor.shape[1] // 2
        for expert, both in enumerate(tensor):
            yield block.replace("gate_up_proj", f"{expert}.{words[0]}.weight"), both[:half]
            yield block.replace("gate_up_proj", f"{expert}.{words[1]}.weight"), both[half:]
    elif name.endswith("experts.down_proj"):
        for expert, down in enumerate(tensor):
            yield block.replace("down_proj", f"{expert}.{words[2]}.weight"), down
    else:
        yield block, tensor


def arrays(model, is_mixtral, get):
    return {name: part.detach().double().numpy().copy() for whole, p in model.named_parameters()
            for name, part in by_expert(whole, get(p), is_mixtral)}


def losses(model, tokens, coefficient):
    out = model(tokens[:, :-1])
    plain = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), tokens[:, 1:].flatten())
    return out.logits, plain, plain + coefficient * out.aux_loss if coefficient > 0 else plain


def rate(step):
    warm = HYPER["warmup_steps"]
    if step <= warm:
        return HYPER["lr"] * step / warm
    least, part = HYPER["min_lr_ratio"], (step - warm) / (STEPS - warm)
    return HYPER["lr"] * (least + (1 - least) * 0.5 * (1 + math.cos(math.pi * part)))


def train(model, tokens, coefficient, is_mixtral):
    weights = list(model.parameters())
    first, second = ([torch.zeros_like(p) for p in weights] for _ in range(2))
    beta1, beta2 = HYPER["beta1"], HYPER["beta2"]
    curve = {"loss": [], "grad_norm": [], "lr": []}
    for step in range(1, STEPS + 1):
        model.zero_grad()
        _, plain, total = losses(model, tokens[step - 1], coefficient)
        total.backward()
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in weights))
        scale, lr = min(1, HYPER["clip_norm"] / (norm + 1e-6)), rate(step)
        for key, value in (("loss", float(plain)), ("grad_norm", norm), ("lr", lr)):
            curve[key].append(value)
        with torch.no_grad():
            for p, m, v in zip(weights, first, second):
                g = p.grad * scale
                p.mul_(1 - lr * (HYPER["weight_decay"] if p.dim() > 1 else 0))
                m.mul_(beta1).add_(g, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
                p.sub_(lr * (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + HYPER["eps"]))
    return {key: np.array(values) for key, values in curve.items()}, arrays(model, is_mixtral, lambda p: p)


def run(make, state, dtype, tokens, coefficient, is_mixtral):
    model = make().to(dtype)
    model.load_state_dict({name: value.to(dtype) for name, value in state.items()})
    logits, plain, total = losses(model, tokens[0], coefficient)
    total.backward()
    gradients = arrays(model, is_mixtral, lambda p: p.grad)
    curve, final = train(model, tokens, coefficient, is_mixtral)
    return logits.detach().double().numpy(), float(plain.detach()), gradients, curve, final


def write(folder, wide, single):
    def put(file, name, want, other, least):
        data = file.create_dataset(name, data=want, compression="gzip", shuffle=True)
        data.attrs["atol"] = float(max(8 * np.abs(want - other).max(), least))
        data.attrs["rtol"] = 1e-5

    with h5py.File(folder / "reference.h5", "w") as file:
        file.attrs.update({"format": "sestina-golden", "version": 1, "kind": "model", "loss": wide[1],
                           "source": "transformers, torch, float64", "loss_atol": max(8 * abs(wide[1] - single[1]), 2e-6)})
        file.create_group("hyper").attrs.update({key: float(value) for key, value in HYPER.items()})
        put(file, "logits", wide[0].astype(np.float32), single[0], 2e-6)
        for name in wide[2]:
            put(file, "gradient/" + name, wide[2][name].astype(np.float32), single[2][name], 1e-8)
            put(file, "final_weight/" + name, wide[4][name].astype(np.float32), single[4][name], 1e-6)
        for name in wide[3]:
            put(file, "training/" + name, wide[3][name], single[3][name], 1e-5)


def windows(seed):
    """Words that often follow from the one before, so that the loss falls."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, WORDS, (STEPS, BATCH, SEQUENCE + 1), generator=generator)
    for i in range(1, SEQUENCE + 1):
        follows = torch.rand((STEPS, BATCH), generator=generator) < 0.7
        tokens[:, :, i] = torch.where(follows, (tokens[:, :, i - 1] * 5 + 3) % WORDS, tokens[:, :, i])
    return tokens


def main():
    for name, make, coefficient, seed in (("qwen3-moe-untied", qwen, 0, 3), ("mixtral-balanced", mixtral, 0.05, 4)):
        folder = pathlib.Path(sys.argv[1]) / name
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(seed)
        model = make().float()
        with torch.no_grad():
            for weight, p in model.named_parameters():
                if p.dim() == 1:
                    p.add_(0.2 * torch.randn_like(p))
                elif "gate.weight" in weight:
                    p.copy_(0.5 * torch.randn_like(p))
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        state, tokens = {key: value.clone() for key, value in model.state_dict().items()}, windows(seed)
        with h5py.File(folder / "tokens.h5", "w") as file:
            file.create_dataset("tokens", data=tokens.numpy().astype(np.int32), compression="gzip", shuffle=True)
        is_mixtral = make is mixtral
        write(folder, *(run(make, state, dtype, tokens, coefficient, is_mixtral) for dtype in (torch.float64, torch.float32)))


if __name__ == "__main__":
    main()
