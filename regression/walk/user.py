"""What the scripts of this folder share: the program, a tiny model, and a text to train on."""
import json
import os
import pathlib
import subprocess

PROGRAM = os.environ["SESTINA"]
DATA = pathlib.Path(__file__).resolve().parent.parent / "data"

SIZES = {
    "model.hidden_size": 64,
    "model.intermediate_size": 128,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4,
    "model.vocab_size": 512,
    "model.max_position_embeddings": 64,
    "data.sequence_length": 32,
    "train.global_batch": 8,
    "schedule.lr": 3e-3,
    "schedule.warmup_steps": 2,
}


def run(*words, code=0, text=None, env=None):
    """Runs the program; returns stdout and stderr together."""
    result = subprocess.run(
        [PROGRAM, *map(str, words)], input=text, text=True, timeout=120, env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert result.returncode == code, f"{words}: exit {result.returncode}, expected {code}\n{result.stdout}"
    return result.stdout


def answer(*words):
    """The JSON object that a verb prints."""
    result = subprocess.run([PROGRAM, *map(str, words)], text=True, timeout=120, capture_output=True)
    assert result.returncode == 0, f"{words}: exit {result.returncode}\n{result.stderr}"
    return json.loads(result.stdout)


def write_corpus(path):
    """Paragraphs of the tests' text, each a line of JSONL."""
    texts = []
    for file in sorted(DATA.glob("*.txt")):
        texts += [part + "\n" for part in file.read_text().split("\n\n") if part.strip()]
    path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    return texts


def keys(values):
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in values.items()]


def lines(run_dir, kind=None):
    """metrics.jsonl."""
    found = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if kind in (None, line["kind"])]


def python_packages():
    """(transformers, tokenizers, torch), or None where one is not installed."""
    try:
        import tokenizers
        import torch
        import transformers
    except ImportError:
        return None
    torch.set_num_threads(1)
    return transformers, tokenizers, torch
