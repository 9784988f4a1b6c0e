#!/usr/bin/env python3
"""Many damaged inputs of every sort: each must be refused in the right way or be read without an error of memory.

  inputs.py --sestina build/asan/bin/sestina --programs build/asan/tests [--count 10000] [--only manifest,tokens] [--seed 1] [--keep DIR]

The replay programs of regression/fuzz take them, many in a process; "program" starts `sestina eval -r` or `train -r` on damaged
checkpoints, a process for each. An input that ends a program in any other way is kept in DIR. Python 3.11."""

import argparse
import gzip
import os
import pathlib
import platform
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "faults"))
import damage  # noqa: E402
import sestina as faults  # noqa: E402
import test_inputs as formats  # noqa: E402

CORPUS = HERE.parent / "fuzz/corpus"
BATCH, BATCH_SECONDS, PROGRAM_SECONDS = 250, 600, 120
SURROUNDINGS = dict(os.environ) | {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false", "UBSAN_OPTIONS": "print_stacktrace=1",
                                   "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1:max_allocation_size_mb=8192"}


def corpus(name):
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


class Good:
    """Good inputs, made by the program itself where they are its own."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.deck = folder / "deck.toml"
        small = faults.DECK.replace("hidden_size = 32", "hidden_size = 8").replace("intermediate_size = 64", "intermediate_size = 8")
        self.deck.write_text(small.replace("num_hidden_layers = 2", "num_hidden_layers = 1").replace("steps = 40", "steps = 3"))
        (folder / "text.txt").write_text(faults.text())
        self.call("train", "-i", self.deck, "-d", folder / "run", "optimizer.kind=muon")
        self.call("checkpoint", "export", folder / "run", "-o", folder / "hf")
        self.call("data", "train-tokenizer", folder / "text.txt", "-o", folder / "tokenizer.json", "--vocab-size", "300")
        self.checkpoint = folder / "run/checkpoints/step_00000003"
        self.files = {path.name: path.read_bytes() for path in sorted(self.checkpoint.iterdir())}
        self.outputs = {}

    def call(self, *words):
        done = subprocess.run([self.program, *map(str, words)], capture_output=True, text=True, cwd=self.folder, env=SURROUNDINGS)
        if done.returncode:
            sys.exit(f"{words}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def manifest(self):
        """Without its digest, which the targets put right."""
        text = self.files["manifest.json"]
        return text[:text.rindex(b",\n\"digest\"")] + b"\n}"


def sealed(text):
    """The text of a manifest with the digest that it should have."""
    text = text.rstrip().removesuffix(b"}").rstrip()
    return text + b',\n"digest": "' + faults.xxh3(text)[1].encode() + b'"\n}\n'


def packed(letter, files):
    return letter + b"".join(bytes([len(name)]) + name.encode() + struct.pack("<I", len(data)) + data for name, data in files.items())


def damaged_files(good, choose):
    """Letter for fuzz_checkpoint, and the files: one damaged, gone, in place of another, or empty; at times all are good."""
    files, name = dict(good.files), choose.choice(sorted(good.files))
    if choose.random() < 0.01:
        return b"g", files
    what = choose.random()
    if what < 0.4:
        files["manifest.json"] = damage.damaged(good.manifest(), choose, [good.manifest(), *corpus("manifest")], damage.JSON)
        return b"s", files
    if what < 0.9:
        ways = damage.JSON if name.endswith(".json") else damage.BYTES
        files[name] = damage.damaged(files[name], choose, list(good.files.values()), ways)
    elif what < 0.95:
        del files[name]
    else:
        files[name] = choose.choice([data for other, data in good.files.items() if other != name] + [b""])
    return choose.choice((b"r", b"r", b"o")), files


def token_sources(good):
    """(letter, first file, second file) of every format."""
    tokens, words = formats.TOKENS, (good.folder / "text.txt").read_bytes()[:4000]
    rows = b"".join(b'{"text": "%s"}\n' % row for row in words.splitlines())
    data = bytes(formats.array.array("H", tokens))
    return {b"m": (formats.megatron_index([1000] * 5), data), b"l": (b"", formats.llmc(tokens)), b"n": (b"", formats.npy(tokens)), b"t": (b"", words),
            b"j": (b"", rows), b"g": (b"", gzip.compress(rows, mtime=0)), b"z": (b"", zstd(rows))}


def zstd(data):
    return subprocess.run(["zstd", "-c"], input=data, capture_output=True, check=True).stdout


def damaged_tokens(letter, first, second, choose):
    ways = {b"t": damage.TOML, b"j": damage.JSON, b"n": damage.TOML}.get(letter, damage.BYTES)
    if first and choose.random() < 0.8:
        first = damage.damaged(first, choose, [first, second], ways)
    else:
        second = damage.damaged(second, choose, [first, second], ways)
    return letter + struct.pack("<I", len(first)) + first + second


def damaged_tokenizer(goods, choose):
    good = choose.choice(goods)
    text, rest = good[:1 + good[0]], good[1 + good[0]:]
    if choose.random() < 0.1:
        text = bytes([40]) + choose.randbytes(40)
    return text + damage.damaged(rest, choose, [other[1 + other[0]:] for other in goods], damage.JSON)


def sorts(good):
    """name: (replay program, function of a choice that gives an input)."""
    decks = corpus("deck") + [path.read_bytes() for path in sorted((HERE.parent.parent / "inputs").glob("*.toml"))]
    manifests, images, indexes = corpus("manifest") + [good.manifest()] * 10, corpus("safetensors"), corpus("idx")
    images += [next((good.folder / "hf").glob("*.safetensors")).read_bytes()] * 3
    tokenizers = [t for t in corpus("tokenizer") if t and len(t) > 1 + t[0]] + [b"\x1d" + b"the of up, they will be there." [:29] + (good.folder / "tokenizer.json").read_bytes()] * 3
    one = {"deck": ("fuzz_deck", decks, damage.TOML), "manifest": ("fuzz_manifest", manifests, damage.JSON),
           "safetensors": ("fuzz_safetensors", images, damage.JSON), "index": ("fuzz_idx", indexes, damage.BYTES)}
    named = {name: (program, lambda choose, goods=goods, ways=ways: damage.damaged(choose.choice([g for g in goods if g]), choose, goods, ways))
             for name, (program, goods, ways) in one.items()}
    named["tokenizer"] = ("fuzz_tokenizer", lambda choose: damaged_tokenizer(tokenizers, choose))
    for letter, pair in token_sources(good).items():
        named[f"tokens-{letter.decode()}"] = ("fuzz_tokens", lambda choose, letter=letter, pair=pair: damaged_tokens(letter, *pair, choose))
    named["checkpoint"] = ("fuzz_checkpoint", lambda choose: packed(*damaged_files(good, choose)))
    return named


def replay(program, paths):
    """Gives all inputs to the program; yields (path, message) of each that ended it, and goes on after it."""
    while paths:
        try:
            done = subprocess.run([program, *paths], capture_output=True, timeout=BATCH_SECONDS, env=SURROUNDINGS)
            code, output, message = done.returncode, done.stdout, done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired as hangs:
            code, output, message = "no end", hangs.stdout or b"", ""
        if code == 0:
            return
        seen = [line for line in output.decode(errors="replace").splitlines() if line in set(map(str, paths))]
        last = seen[-1] if seen else str(paths[0])
        yield last, f"{code}: {message[:1500]}"
        paths = paths[[str(path) for path in paths].index(last) + 1:]


def attack(name, program, make, options, scratch):
    """Number of inputs that were not taken as they should be."""
    begin, wrong = time.monotonic(), 0
    for start in range(0, options.count, BATCH):
        folder = scratch / name
        folder.mkdir()
        paths = []
        for number in range(start, min(start + BATCH, options.count)):
            paths.append(folder / f"{number:06}")
            paths[-1].write_bytes(make(random.Random(f"{options.seed} {name} {number}")))
        for path, message in replay(program, paths):
            wrong += 1
            options.keep.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, options.keep / f"{name}-{pathlib.Path(path).name}")
            print(f"WRONG {name} {path}: {message}", flush=True)
        shutil.rmtree(folder)
    print(f"{name:12} {options.count:7} inputs, {wrong} wrong, {time.monotonic() - begin:.0f} s", flush=True)
    return wrong


def run_program(good, folder, number):
    """Exit code and output of eval or of a train that goes on; equal numbers begin equally."""
    words = ("eval", "-r", folder) if number % 2 else ("train", "-i", good.deck, "-r", folder, "-d", folder.parent / "next", "run.steps=4", "metrics.every=1")
    shutil.rmtree(folder.parent / "next", ignore_errors=True)
    done = subprocess.run([good.program, *map(str, words)], capture_output=True, text=True, errors="replace", cwd=good.folder, env=SURROUNDINGS, timeout=PROGRAM_SECONDS)
    losses = [word for line in done.stdout.splitlines() if "loss " in line for word in [line.split("loss ")[1].split()[0]]]
    return done.returncode, losses, done.stdout + done.stderr


def attack_program(good, options, scratch):
    """A damaged checkpoint is refused with 65; what is taken gives the numbers of the good one. With a right digest around a
    damaged manifest the deck in it may be refused, or change the numbers."""
    begin, wrong, taken, folder = time.monotonic(), 0, 0, scratch / "checkpoint"
    folder.mkdir()
    for number in (-2, -1, *range(options.count)):
        letter, files = (b"", good.files) if number < 0 else damaged_files(good, random.Random(f"{options.seed} program {number}"))
        if letter == b"s":
            files["manifest.json"] = sealed(files["manifest.json"])
        for path in folder.iterdir():
            path.unlink()
        for name, data in files.items():
            (folder / name).write_bytes(data)
        code, losses, output = run_program(good, folder, number)
        if number < 0:
            good.outputs[number % 2] = losses
        taken += code == 0
        vouched = letter == b"s"  # its deck may be another one by now, or none
        refused = code in ((faults.BAD_DATA, faults.INPUT_MISSING, faults.BAD_DECK) if vouched else (faults.BAD_DATA,))
        if not (refused and output.count("sestina: error:") == 1 or code == 0 and losses and (vouched or losses == good.outputs[number % 2])):
            wrong += 1
            shutil.copytree(folder, options.keep / f"program-{number:06}", dirs_exist_ok=True)
            print(f"WRONG program {number}: {code} {losses}\n{output[-1500:]}", flush=True)
    print(f"{'program':12} {options.count:7} inputs, {wrong} wrong, {taken - 2} taken, {time.monotonic() - begin:.0f} s", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description="Damaged inputs of every sort")
    parser.add_argument("--sestina", type=pathlib.Path, required=True)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder of the replay programs")
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default="", help="sorts, separated by commas")
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("attack-inputs"), help="for inputs that are not taken as they should be")
    options = parser.parse_args()
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="sestina-attack-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        (scratch / "good").mkdir()
        good = Good(options.sestina.resolve(), scratch / "good")
        print(good.call("--version").splitlines()[0], platform.platform(), f"seed {options.seed}", sep="; ", flush=True)
        wanted, wrong = options.only.split(",") if options.only else None, 0
        for name, (program, make) in sorts(good).items():
            if wanted is None or name in wanted or name.split("-")[0] in wanted:
                wrong += attack(name, options.programs.resolve() / program, make, options, scratch)
        if wanted is None or "program" in wanted:
            wrong += attack_program(good, options, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"{wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
