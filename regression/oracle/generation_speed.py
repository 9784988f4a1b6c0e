#!/usr/bin/env python3
"""Greedy generation of transformers and of Sestina, in turn, on the same cores from the same folder; their tokens compared.

Run by hand (needs torch, transformers):
    generation_speed.py SESTINA HF_FOLDER [--threads 2 --prompt 64 --tokens 128 --batch 1 4 --rounds 3 --precision fp32]
Prompts are letters read as bytes, so the folder needs no tokenizer; both write bytes alone, whatever else a vocabulary has. Times are those of reading the prompt and making the
tokens, without loading; transformers runs once before it is timed. A step is bound by reading the weights of the layers
and of the head: next to the tokens per second stands how fast they are read, and how fast torch sums a long vector, the best
of all rounds (on a loaded machine less than what memory gives).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import transformers


def prompts(count, length):
    return ["".join(chr(97 + (7 * i * i + 3 * i + 11 * b) % 26) for i in range(length)) for b in range(count)]


def bandwidth():
    """Bytes per second at which the threads of torch read memory (a sum of 1 GiB, the best of three)."""
    values = torch.ones(1 << 28)
    best = 0.0
    for _ in range(3):
        begin = time.perf_counter()
        values.sum()
        best = max(best, values.numel() * 4 / (time.perf_counter() - begin))
    return best


class Transformers:
    def __init__(self, folder, precision, threads):
        torch.set_num_threads(threads)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0
        self.model.generation_config.suppress_tokens = list(range(256, self.model.config.vocab_size)) or None

    def run(self, texts, tokens):
        ids = torch.tensor([list(text.encode()) for text in texts])
        begin = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
        return time.perf_counter() - begin, out.tolist()

    def weight_bytes(self):
        table = self.model.get_input_embeddings().weight
        tied = self.model.get_output_embeddings().weight is table
        read = [p for p in self.model.parameters() if tied or p is not table]
        return sum(p.numel() * p.element_size() for p in read)


def sestina(program, folder, texts, arguments):
    command = [program, "generate", "--hf", folder, "--temperature", "0", "--tokens", str(arguments.tokens), "--json",
               "data.tokenizer=bytes", f"train.precision={arguments.precision}", "run.space=host", f"run.threads={arguments.threads}"]
    for text in texts:
        command += ["--prompt", text]
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    out = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    return out["prompt_s"] + out["tokens_s"], [s["ids"] for s in out["sequences"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="fp32")
    arguments = parser.parse_args()

    other = Transformers(arguments.folder, arguments.precision, arguments.threads)
    speed = bandwidth()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {arguments.precision}, {arguments.threads} threads, "
          f"prompts of {arguments.prompt}, {arguments.tokens} new tokens")
    slower = False
    for batch in arguments.batch:
        texts = prompts(batch, arguments.prompt)
        other.run(texts, 4)
        times, ids = {"transformers": [], "sestina": []}, {}
        for _ in range(arguments.rounds):
            speed = max(speed, bandwidth())
            for name, run in (("transformers", lambda: other.run(texts, arguments.tokens)),
                              ("sestina", lambda: sestina(arguments.program, arguments.folder, texts, arguments))):
                seconds, ids[name] = run()
                times[name].append(seconds)
        same = sum(a == b for a, b in zip(ids["transformers"], ids["sestina"]))
        for name, values in times.items():
            median = statistics.median(values)
            rate = other.weight_bytes() * arguments.tokens / median
            print(f"batch {batch}  {name:12}  {median:7.3f} s ({min(values):.3f} to {max(values):.3f})  "
                  f"{batch * arguments.tokens / median:7.1f} tokens/s  weights at {rate * 1e-9:.1f} GB/s, a vector at {speed * 1e-9:.1f}")
        ratio = statistics.median(times["transformers"]) / statistics.median(times["sestina"])
        print(f"batch {batch}  {ratio:.2f} times as fast; {same} of {batch} sequences have the same tokens")
        slower |= ratio < 1
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
