#!/usr/bin/env python3
"""Every family that is exported is loaded by transformers without a missing or unknown tensor, gives the same loss, and
`generate` there knows where a text ends. Exit 77 (skipped) where transformers, tokenizers or torch are not installed."""
import json
import pathlib
import sys
import tempfile

from user import DATA, SIZES, answer, keys, python_packages, run

FAMILIES = {
    "llama": ("LlamaForCausalLM", {"model.num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", {"model.head_dim": 32, "model.tie_word_embeddings": True}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "gpt": ("GPT2LMHeadModel", {"model.position": "learned", "model.attention_bias": True,
                                "model.tie_word_embeddings": True, "model.hidden_act": "gelu_new"}),
}


def check(work, family, packages):
    transformers, _, torch = packages
    architecture, own_keys = FAMILIES[family]
    run("train", f"model.family={family}", *keys({**SIZES, **own_keys}), f"data.tokenizer={work}/tokenizer.json",
        f'data.source=[{{path="{DATA}"}}]', "run.steps=5", "-d", work / family, "--progress", "never")
    folder = work / f"{family}-hf"
    run("checkpoint", "export", work / family, "-o", folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [architecture], config
    ours = answer("eval", "--hf", folder, f'data.validation=[{{path="{DATA}/harbour.txt"}}]', "data.sequence_length=32",
                  "data.shuffle=false", "train.global_batch=4", "train.micro_batch=4", "metrics.eval_batches=8", "--json")

    model, problems = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert type(model).__name__ == architecture, type(model)
    assert not any(problems.values()), problems
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token_id
    assert end is not None and model.generation_config.eos_token_id == end, (end, model.generation_config)
    ids = tokenizer((DATA / "harbour.txt").read_text(), add_special_tokens=False).input_ids
    windows = torch.tensor([ids[32 * i : 32 * i + 33] for i in range(ours["tokens"] // 32)])
    with torch.no_grad():
        logits = model.eval()(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()
    assert abs(loss - ours["loss"]) < 1e-5, (family, loss, ours["loss"])
    print(f"{family}: {architecture}, loss {loss:.7f} in transformers {transformers.__version__}, {ours['loss']:.7f} here")

    # What transformers saves is read here again.
    model.save_pretrained(work / f"{family}-saved")
    tokenizer.save_pretrained(work / f"{family}-saved")
    again = answer("eval", "--hf", work / f"{family}-saved", f'data.validation=[{{path="{DATA}/harbour.txt"}}]',
                   "data.sequence_length=32", "data.shuffle=false", "train.global_batch=4", "train.micro_batch=4",
                   "metrics.eval_batches=8", "--json")
    assert again["loss"] == ours["loss"], (family, again, ours)


def main():
    packages = python_packages()
    if not packages:
        print("skipped: transformers, tokenizers or torch are not installed")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder).resolve()
        run("data", "train-tokenizer", DATA, "--vocab-size", 512, "-o", work / "tokenizer.json")
        for family in FAMILIES:
            check(work, family, packages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
