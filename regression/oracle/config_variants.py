#!/usr/bin/env python3
"""Configurations as other people write them: the loss of `sestina eval --hf` is that of transformers, or the folder is refused by name (65).

Run by hand: config_variants.py SESTINA. Without torch, transformers or safetensors it says so and exits with 77. The models are tiny and
their weights are drawn here; a variant that is marked "loads" must not be refused.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LAYERS, HIDDEN, HEADS, KV, HEAD_DIM, VOCABULARY, INNER = 2, 64, 4, 2, 16, 300, 96
L3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
SMALL = {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "num_key_value_heads": KV, "head_dim": HEAD_DIM, "vocab_size": VOCABULARY, "max_position_embeddings": 256, "rms_norm_eps": 1e-6,
         "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0}
GPT2 = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": VOCABULARY, "n_positions": 256}


def without(table, *keys):
    return {key: value for key, value in table.items() if key not in keys}


def hub(**more):
    """What a base class, an older release or a tool of the hub adds."""
    return {"architectures": ["X"], "torch_dtype": "bfloat16", "use_cache": True, "transformers_version": "4.31.0", "_name_or_path": "a/b",
            "pretraining_tp": 1, "task_specific_params": {"text-generation": {"do_sample": True}}, "id2label": {"0": "LABEL_0"},
            "label2id": {"LABEL_0": 0}, "temperature": 0.7, "max_length": 50, "torchscript": False, "auto_map": {}, "tokenizer_class": "X",
            "return_dict": True, "output_attentions": False, "is_decoder": False, **more}


# name, family, keys that change, keys that go, tensors (see tensors()), must load
VARIANTS = []
for family in ("llama", "qwen3", "olmo2"):
    VARIANTS += [
        (f"{family} plain", family, {}, [], "", True),
        (f"{family} without theta", family, {}, ["rope_theta"], "", True),
        (f"{family} without eps", family, {}, ["rms_norm_eps"], "", True),
        (f"{family} without what has a default", family, {}, ["rms_norm_eps", "rope_theta", "tie_word_embeddings", "hidden_act", "max_position_embeddings"], "", True),
        (f"{family} as on the hub", family, hub(), [], "", True),
        (f"{family} theta 5e5", family, {"rope_theta": 5e5}, [], "", True),
        (f"{family} rope_parameters", family, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, ["rope_theta"], "", True),
        (f"{family} rope_parameters without type", family, {"rope_parameters": {"rope_theta": 5e5}}, ["rope_theta"], "", True),
        (f"{family} theta inside and outside", family, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, [], "", True),
        (f"{family} theta in rope_scaling", family, {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, ["rope_theta"], "", True),
        (f"{family} llama3", family, {"rope_scaling": L3}, [], "", True),
        (f"{family} llama3 by type", family, {"rope_scaling": {**without(L3, "rope_type"), "type": "llama3"}}, [], "", True),
        (f"{family} llama3 in rope_parameters", family, {"rope_parameters": {**L3, "rope_theta": 5e5}}, ["rope_theta"], "", True),
        (f"{family} llama3 without original", family, {"rope_scaling": without(L3, "original_max_position_embeddings")}, [], "", True),
        (f"{family} llama3 with original outside", family, {"rope_scaling": without(L3, "original_max_position_embeddings"), "original_max_position_embeddings": 32}, [], "", True),
        (f"{family} llama3 with two originals", family, {"rope_scaling": L3, "original_max_position_embeddings": 32}, [], "", False),
        (f"{family} llama3 without factor", family, {"rope_scaling": without(L3, "factor")}, [], "", False),
        (f"{family} both ropes, equal", family, {"rope_scaling": L3, "rope_parameters": {**L3, "rope_theta": 10000.0}}, [], "", True),
        (f"{family} both ropes", family, {"rope_scaling": L3, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, [], "", False),
        (f"{family} empty rope tables", family, {"rope_scaling": {}, "rope_parameters": {}}, [], "", True),
        (f"{family} linear", family, {"rope_scaling": {"type": "linear", "factor": 2.0}}, [], "", False),
        (f"{family} dynamic", family, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, [], "", False),
        (f"{family} yarn", family, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}, [], "", False),
        (f"{family} longrope", family, {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [2.0] * 8, "factor": 2.0, "original_max_position_embeddings": 64}}, [], "", False),
        (f"{family} nested yarn", family, {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}}, ["rope_theta"], "", False),
        (f"{family} nested default", family, {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}}}, ["rope_theta"], "", False),
        (f"{family} partial rotary", family, {"partial_rotary_factor": 0.5}, [], "", False),
        (f"{family} partial rotary inside", family, {"rope_scaling": {**L3, "partial_rotary_factor": 0.5}}, [], "", False),
        (f"{family} heads from null", family, {"num_key_value_heads": None}, [], "all heads", True),
        (f"{family} heads from nothing", family, {}, ["num_key_value_heads"], "all heads", family != "qwen3"),
        (f"{family} biases", family, {"attention_bias": True}, [], "biases", True),
        (f"{family} swish", family, {"hidden_act": "swish"}, [], "", True),
        (f"{family} relu", family, {"hidden_act": "relu"}, [], "", False),
        (f"{family} tied", family, {"tie_word_embeddings": True}, [], "no head", True),
        (f"{family} tied with its head", family, {"tie_word_embeddings": True}, [], "same head", True),
        (f"{family} tied with another head", family, {"tie_word_embeddings": True}, [], "", False),
        (f"{family} windows", family, {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, [], "", False),
        (f"{family} window unused", family, {"sliding_window": 8, "use_sliding_window": False}, [], "", family == "qwen3"),
        (f"{family} layer types", family, {"layer_types": ["full_attention", "full_attention"]}, [], "", True),
        (f"{family} sliding layer types", family, {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}, [], "", False),
        (f"{family} both ways", family, {"is_causal": False}, [], "", False),
        (f"{family} unknown key", family, {"logit_scale": 0.5}, [], "", False),
        (f"{family} quantized", family, {"quantization_config": {"quant_method": "none"}}, [], "", False),
        (f"{family} dropout", family, {"attention_dropout": 0.1}, [], "", False),
        (f"{family} ends", family, {"eos_token_id": [3, 4], "bos_token_id": None, "pad_token_id": -1}, [], "", True),
    ]
VARIANTS += [
    ("llama head_dim from null", "llama", {"head_dim": None}, [], "", True),
    ("llama without head_dim", "llama", {}, ["head_dim"], "", True),
    ("olmo2 without head_dim", "olmo2", {}, ["head_dim"], "", True),
    ("llama wide heads", "llama", {"head_dim": 32}, [], "wide heads", True),
    ("qwen3 head_dim of the class", "qwen3", {}, ["head_dim"], "class heads", True),
    ("gpt2 plain", "gpt2", {}, [], "", True),
    ("gpt2 as on the hub", "gpt2", hub(n_ctx=256, n_inner=None, attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1, summary_type="cls_index", summary_use_proj=True,
                                       summary_activation=None, summary_proj_to_labels=True, summary_first_dropout=0.1, reorder_and_upcast_attn=False,
                                       scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, predict_special_tokens=True, n_special=0), [], "", True),
    ("gpt2 without defaults", "gpt2", {}, ["n_positions"], "long positions", True),
    ("gpt2 gelu", "gpt2", {"activation_function": "gelu"}, [], "", True),
    ("gpt2 relu", "gpt2", {"activation_function": "relu"}, [], "", False),
    ("gpt2 other names", "gpt2", {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}, ["n_embd", "n_layer", "n_head"], "", True),
    ("gpt2 two names", "gpt2", {"num_attention_heads": 2}, [], "", True),
    ("gpt2 eps", "gpt2", {"layer_norm_epsilon": 0.1}, [], "", True),
    ("gpt2 by layer", "gpt2", {"scale_attn_by_inverse_layer_idx": True}, [], "", False),
    ("gpt2 unscaled", "gpt2", {"scale_attn_weights": False}, [], "", False),
    ("gpt2 cross", "gpt2", {"add_cross_attention": True}, [], "", False),
    ("gpt2 untied", "gpt2", {"tie_word_embeddings": False}, [], "head", True),
    ("gpt2 tied with another head", "gpt2", {}, [], "head", False),
    ("gpt2 unknown key", "gpt2", {"rotary_dim": 8}, [], "", False),
]


def tensors(family, what):
    r = np.random.default_rng(0)
    draw = lambda *shape: (r.standard_normal(shape) * 0.2).astype(np.float32)
    norm = lambda n: (1 + 0.1 * r.standard_normal(n)).astype(np.float32)
    t = {}
    if family == "gpt2":
        t["transformer.wte.weight"], t["transformer.wpe.weight"] = draw(VOCABULARY, HIDDEN), draw(1024 if what == "long positions" else 256, HIDDEN)
        for part, shape in (("attn.c_attn", (HIDDEN, 3 * HIDDEN)), ("attn.c_proj", (HIDDEN, HIDDEN)), ("mlp.c_fc", (HIDDEN, 4 * HIDDEN)), ("mlp.c_proj", (4 * HIDDEN, HIDDEN))):
            for layer in range(LAYERS):
                t[f"transformer.h.{layer}.{part}.weight"], t[f"transformer.h.{layer}.{part}.bias"] = draw(*shape), draw(shape[1])
        for part in [f"h.{layer}.ln_{i}" for layer in range(LAYERS) for i in (1, 2)] + ["ln_f"]:
            t[f"transformer.{part}.weight"], t[f"transformer.{part}.bias"] = norm(HIDDEN), draw(HIDDEN)
        if what == "head":
            t["lm_head.weight"] = draw(VOCABULARY, HIDDEN)
        return t
    kv, dim = HEADS if what == "all heads" else KV, {"wide heads": 32, "class heads": 128}.get(what, HEAD_DIM)
    t["model.embed_tokens.weight"], t["model.norm.weight"] = draw(VOCABULARY, HIDDEN), norm(HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for part, rows, cols in (("q", HEADS * dim, HIDDEN), ("k", kv * dim, HIDDEN), ("v", kv * dim, HIDDEN), ("o", HIDDEN, HEADS * dim)):
            t[f"{at}self_attn.{part}_proj.weight"] = draw(rows, cols)
            if what == "biases":
                t[f"{at}self_attn.{part}_proj.bias"] = draw(rows)
        if family != "llama":
            t[at + "self_attn.q_norm.weight"], t[at + "self_attn.k_norm.weight"] = (norm(dim), norm(dim)) if family == "qwen3" else (norm(HEADS * dim), norm(kv * dim))
        t[at + ("post_feedforward_layernorm" if family == "olmo2" else "input_layernorm") + ".weight"] = norm(HIDDEN)
        t[at + "post_attention_layernorm.weight"] = norm(HIDDEN)
        t[at + "mlp.gate_proj.weight"], t[at + "mlp.up_proj.weight"], t[at + "mlp.down_proj.weight"] = draw(INNER, HIDDEN), draw(INNER, HIDDEN), draw(HIDDEN, INNER)
    if what != "no head":
        t["lm_head.weight"] = t["model.embed_tokens.weight"] if what == "same head" else draw(VOCABULARY, HIDDEN)
    return t


def make(folder, family, changes, gone, what):
    os.makedirs(folder)
    save_file(tensors(family, what), folder + "/model.safetensors", metadata={"format": "pt"})
    config = {"model_type": family, **without({**(GPT2 if family == "gpt2" else SMALL), **changes}, *gone)}
    pathlib.Path(folder, "config.json").write_text(json.dumps(config))


def theirs(folder, text, sequence=64, windows=16):
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        total = 0.0
        for i in range(windows):
            ids = torch.tensor([list(text[sequence * i:sequence * (i + 1) + 1])])
            rows = torch.log_softmax(model(ids[:, :-1]).logits[0].double(), -1)
            total -= rows[torch.arange(sequence), ids[0, 1:]].mean().item()
        return total / windows
    except Exception as error:  # it refuses too, in its own way
        return f"{type(error).__name__}"


def ours(program, folder, path):
    done = subprocess.run([program, "eval", "--hf", folder, f'data.validation=[{{format="text",path="{path}"}}]', "data.tokenizer=bytes", "data.sequence_length=64",
                           "train.micro_batch=1", "train.global_batch=1", "data.shuffle=false", "metrics.eval_batches=16", "--json"], capture_output=True, text=True)
    if done.returncode == 65:
        return "refused: " + done.stderr.strip().split("\n")[-1].split("config.json: ")[-1][-100:]
    return json.loads(done.stdout)["loss"] if done.returncode == 0 else f"exit {done.returncode}: {done.stderr[-200:]}"


def exported(program, folder, work):
    """Imported and exported again: read by transformers."""
    for command in (["import", folder, "-d", work + "/run"], ["export", work + "/run", "-o", work + "/again"]):
        done = subprocess.run([program, "checkpoint", *command], capture_output=True, text=True)
        if done.returncode:
            return f"exit {done.returncode}: {done.stderr[-200:]}"
    return theirs(work + "/again", TEXT)


TEXT = "".join(f"some text number {i} for the model to read and read again.\n" for i in range(60)).encode()


def main():
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    failed = 0
    with torch.no_grad(), tempfile.TemporaryDirectory() as work:
        path = work + "/text.txt"
        pathlib.Path(path).write_bytes(TEXT)
        for i, (name, family, changes, gone, what, loads) in enumerate(VARIANTS):
            folder = f"{work}/{i}"
            make(folder, family, changes, gone, what)
            a, b = ours(sys.argv[1], folder, path), theirs(folder, TEXT)
            both = isinstance(a, float) and isinstance(b, float)
            good = (both and abs(a - b) < 2e-5) or (not loads and str(a).startswith("refused"))
            again = exported(sys.argv[1], folder, f"{work}/{i}x") if both else b
            good = good and (not both or (isinstance(again, float) and math.isclose(again, b, abs_tol=2e-5)))
            failed += not good
            print(f"{name:40} {a if isinstance(a, str) else f'{a:.6f}'}  {b if isinstance(b, str) else f'{b:.6f}'}  {'ok' if good else f'FAILED {again}'}", flush=True)
    print(f"{len(VARIANTS)} variants, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
