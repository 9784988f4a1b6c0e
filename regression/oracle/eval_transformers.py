#!/usr/bin/env python3
"""`sestina eval` and `generate` compared with transformers on the same folder: loss, its standard error, bits per byte,
multiple choice, greedy tokens.

Run by hand: eval_transformers.py SESTINA HF_FOLDER TEXT [--windows 16 --sequence 64]. Without torch or transformers it
says so and exits with 77. Texts are read as bytes unless the folder holds a tokenizer.json.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)


def sestina(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.args}: {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


class Model:
    def __init__(self, folder):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        path = pathlib.Path(folder) / "tokenizer.json"
        self.tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path)) if path.exists() else None

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False) if self.tokenizer else list(text.encode())

    def log_probabilities(self, ids):
        with torch.no_grad():
            return torch.log_softmax(self.model(torch.tensor([ids])).logits[0].double(), -1)

    def score(self, ids, begin):
        """Log-likelihood of ids[begin:]."""
        rows = self.log_probabilities(ids[:-1])
        return sum(rows[i - 1, ids[i]].item() for i in range(begin, len(ids)))


def losses(model, text, sequence, windows):
    ids = model.encode(text)
    means = [-model.score(ids[sequence * i:sequence * (i + 1) + 1], 1) / sequence for i in range(windows)]
    mean, tokens = statistics.mean(means), len(ids) + (model.tokenizer is not None)  # and the end of the document
    return mean, statistics.stdev(means) / math.sqrt(windows), mean / math.log(2) * tokens / len(text.encode())


def questions(text, count):
    """What comes next in the text, against what comes elsewhere."""
    words, made = text.split(), []
    for i in range(count):
        at = 40 + 37 * i
        right, wrong = " " + words[at], [" " + " ".join(words[at + 200 + k:at + 202 + k]) for k in range(3)]
        choices = wrong[:i % 4] + [right] + wrong[i % 4:]
        made.append({"context": " ".join(words[at - 12:at]), "choices": choices, "answer": i % 4})
    return made


def accuracies(model, made):
    plain, normalised = [], []
    for question in made:
        begin = len(model.encode(question["context"]))
        scores = [model.score(model.encode(question["context"] + choice), begin) for choice in question["choices"]]
        plain.append(scores.index(max(scores)) == question["answer"])
        per_byte = [score / len(choice.encode()) for score, choice in zip(scores, question["choices"])]
        normalised.append(per_byte.index(max(per_byte)) == question["answer"])
    return statistics.mean(plain), statistics.mean(normalised)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("text")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--questions", type=int, default=40)
    o = parser.parse_args()
    model, text = Model(o.folder), pathlib.Path(o.text).read_text()
    extra = [] if model.tokenizer else ["data.tokenizer=bytes"]
    pairs = []

    theirs = losses(model, text, o.sequence, o.windows)
    source = f'data.validation=[{{format="text",path="{os.path.abspath(o.text)}"}}]'
    ours = sestina(o.program, "eval", "--hf", o.folder, source, f"data.sequence_length={o.sequence}", "train.micro_batch=1", "data.shuffle=false",
                   "train.global_batch=1", f"metrics.eval_batches={o.windows}", *extra)
    pairs += [("loss", ours["loss"], theirs[0], 2e-5), ("its standard error", ours["loss_error"], theirs[1], 2e-5),
              ("bits per byte", ours["bits_per_byte"], theirs[2], 1e-5), ("perplexity", ours["perplexity"], math.exp(theirs[0]), 1e-2)]

    made = questions(text, o.questions)
    theirs = accuracies(model, made)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(json.dumps(question) + "\n" for question in made)
        file.flush()
        ours = sestina(o.program, "eval", "--hf", o.folder, "--choices", file.name, *extra)
    pairs += [("accuracy", ours["accuracy"], theirs[0], 1e-12), ("normalised", ours["accuracy_normalised"], theirs[1], 1e-12)]

    prompt = " ".join(text.split()[:5])
    ours = sestina(o.program, "generate", "--hf", o.folder, "--prompt", prompt, "--temperature", 0, "--tokens", 24, *extra)
    begin = ours["prompt_tokens"]
    rows = model.log_probabilities(ours["ids"][:-1])
    short = max((rows[i - 1].max() - rows[i - 1, token]).item() for i, token in enumerate(ours["ids"]) if i >= begin)
    pairs.append(("greedy tokens below the likeliest by", short, 0.0, 1e-4))

    failed = False
    for what, a, b, tolerance in pairs:
        bad = not abs(a - b) <= tolerance
        failed |= bad
        print(f"{what:38} {a:.8f}  {b:.8f}  {'FAILED' if bad else 'ok'}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
