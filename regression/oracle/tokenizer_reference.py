#!/usr/bin/env python3
"""Reference ids of byte-level BPE tokenizers, made with the Python package `tokenizers` (0.23.3).

  tokenizer_reference.py make ../golden/tokenizer
      writes <name>.json (a tokenizer of each kind, trained on the text below) and cases.json: texts with their ids, and a
      CRC-32 of the ids of every code point in several surroundings.
  tokenizer_reference.py compare build/bin/sestina TOKENIZER.json [TEXT ...] [--seed N] [--count N]
      encodes the files TEXT and random texts with both programs (`sestina data tokenize` as files of one folder) and counts
      the differences. TOKENIZER.json may be one that `sestina data train-tokenizer` made: it must load in the package.
"""
import argparse
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
NAMES = ["gpt2", "gpt2_prefix", "llama3", "qwen"]

TEXT = """The six words at the ends of the lines come back in every stanza, turned once more: the last becomes the first,
and the first the second. Nobody's ear follows it, they say; we'll see. It isn't a rhyme, it's a rotation.
Matrix by matrix the weights are turned as well, and what was large in one basis is small in another.
A river, a stone, a door, a winter, a lamp, a name. A name, a river, a lamp, a stone, a winter, a door.
    for (int step = 0; step < 1000; ++step) { loss += forward(batch); }\n\n\tif loss != loss:\n\t\treturn None\n
Zwölf Boxkämpfer jagten Viktor quer über den großen Sylter Deich; Füße müssen größer sein, daß es lärmt.
L'été dernier, nous avons déjà mangé des crêpes à Besançon, où le garçon naïf rêvait d'œufs.
Шесть слов возвращаются в каждой строфе, и последнее становится первым; потом второе, третье, четвёртое.
Έξι λέξεις επιστρέφουν σε κάθε στροφή και η τελευταία γίνεται πρώτη.
六个词在每一节的末尾回来，最后的变成最先的。河、石、门、冬、灯、名。六つの言葉がどの連にも戻ってくる。ことばは回る。
여섯 낱말이 연마다 돌아온다. 마지막 낱말이 첫 낱말이 된다. שש מילים חוזרות בכל בית. ست كلمات تعود في كل مقطع.
हर छंद में छह शब्द लौटते हैं। หกคำกลับมาในทุกบท 12345 67 8.9e-10 2026-11-21 0x1F 3,141,592 ½ ⅓ ² ٣٤٥ ४५६
👩‍👩‍👧 🙂🙂 🏳️‍🌈 ❤️ → ∑∫√ ≤ ≥ ≠ «quoted» “quoted” ‘it’s’ … — – !!! ??? ;;; === --- *** ((())) [] {} <a href="x">
"""
PARTS = ["'s", "'t", "'re", "'VE", "'ll", "'LL", "'\u017f", "'D", " ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000",
         "\u180e", "\u200b", "\x85", "\u2028", "0", "12", "1234567", "\u00bd", "\u0663\u0664", "the ", " and", "Hello",
         "<|endoftext|>", "<|start|>", "<|sta", "<mask>", " <mask> ", "<right>", "<right> \n", "word", "wordy", " word ",
         "l r", "cafe\u0301", "caf\u00e9", "\u0301", "\u0316\u0301\u0345", "\U0001F600",
         "\U0001F468\u200d\U0001F469\u200d\U0001F467", "\u4e2d\u6587", "\uac00", "\u1112\u1161\u11ab", "\u0e33", "!!!",
         "...", "?!\n\n", "\x00", "\x1f", "\x7f", "\ufeff", "\ufffd", "_", "\u203f"]


def is_scalar(point):
    return not 0xD800 <= point < 0xE000


def random_point(rng):
    while True:
        kind = rng.random()
        point = (rng.randrange(0x20, 0x7F) if kind < .3 else rng.randrange(0x800) if kind < .5 else
                 rng.randrange(0x800, 0x10000) if kind < .75 else rng.randrange(0x300, 0x370) if kind < .8 else
                 rng.randrange(0x10000, 0x20000) if kind < .97 else rng.randrange(0x20000, 0x110000))
        if is_scalar(point):
            return chr(point)


def random_text(rng, length):
    text = ""
    while len(text) < length:
        kind = rng.random()
        if kind < .5:
            text += rng.choice(PARTS)
        elif kind < .6:
            text += rng.choice([" ", "\n", "=", "a", "\t", " \n", "-"]) * rng.randrange(1, 150 if rng.random() < .05 else 12)
        elif kind < .7:
            block = rng.randrange(0x100, 0x1F00) * 16
            text += "".join(chr(p) for p in (block + rng.randrange(64) for _ in range(rng.randrange(1, 9))) if is_scalar(p))
        else:
            text += "".join(random_point(rng) for _ in range(rng.randrange(1, 6)))
    return text


def build(name, vocab_size=1200):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    if name.startswith("gpt2"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=name == "gpt2_prefix")
    else:
        split = pre_tokenizers.Split(Regex(LLAMA3 if name == "llama3" else QWEN), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    if name == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    rng = random.Random(5)
    texts = TEXT.splitlines(True) * 4 + [TEXT.replace("\n", "")] + [random_text(rng, 200) for _ in range(300)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>"]))
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<mask>", lstrip=True, special=True),
                                  AddedToken("<right>", rstrip=True, special=True)])
    tokenizer.add_tokens([AddedToken("cafe\u0301", normalized=True), AddedToken("word", single_word=True, normalized=False),
                          AddedToken("wordy", normalized=True), AddedToken("<|", normalized=True),
                          AddedToken("l r", lstrip=True, rstrip=True, single_word=True)])
    return tokenizer


def compact(tokenizer):
    """The file with merges as "a b" for half of them, to have both forms."""
    root = json.loads(tokenizer.to_str())
    merges = root["model"]["merges"]
    root["model"]["merges"] = [" ".join(m) if i % 2 else m for i, m in enumerate(merges)]
    return json.dumps(root, ensure_ascii=False, separators=(",", ":"))


def surroundings(point):
    c = chr(point)
    return f"a{c}\u0334{c}\u0301 {c}{c}1{c}\n {c} 's{c}\u0345"


def make(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    texts = ["", " ", "a"] + TEXT.splitlines() + [TEXT] + [random_text(rng, rng.randrange(1, 120)) for _ in range(210)]
    texts += ["x" * 300 + " " * 500 + "=" * 129 + "ab" * 200 + "\n" * 300, " " * 1000 + "a", "\u4e2d" * 150, "\u0301" * 90]
    cases = {"made_with": "tokenizers 0.23.3, regression/oracle/tokenizer_reference.py", "texts": texts, "ids": {},
             "block": 4096, "blocks": {}}
    for name in NAMES:
        tokenizer = build(name)
        (folder / f"{name}.json").write_text(compact(tokenizer), encoding="utf8")
        cases["ids"][name] = [tokenizer.encode(t, add_special_tokens=False).ids for t in texts]
        cases["blocks"][name] = []
        for first in range(0, 0x110000, cases["block"]):
            points = [p for p in range(first, first + cases["block"]) if is_scalar(p)]
            state = 0
            for encoding in tokenizer.encode_batch([surroundings(p) for p in points], add_special_tokens=False):
                state = zlib.crc32(struct.pack(f"<{len(encoding.ids)}I", *encoding.ids), state)
            cases["blocks"][name].append(state)
    (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=True, separators=(",", ":")), encoding="utf8")


def read_megatron(prefix):
    index = pathlib.Path(prefix + ".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    code, sequences, _ = struct.unpack_from("<BQQ", index, 17)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    kind, size = {8: ("H", 2), 4: ("i", 4)}[code]
    data = pathlib.Path(prefix + ".bin").read_bytes()
    documents, at = [], 0
    for length in lengths:
        documents.append(list(struct.unpack_from(f"<{length}{kind}", data, at)))
        at += length * size
    return documents


def compare(arguments):
    tokenizer = Tokenizer.from_file(arguments.tokenizer)
    rng = random.Random(arguments.seed)
    texts = [pathlib.Path(p).read_bytes().decode("utf8", errors="replace") for p in arguments.text]
    texts += [random_text(rng, rng.randrange(1, 400)) for _ in range(arguments.count)]
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "in").mkdir()
        for i, text in enumerate(texts):
            (pathlib.Path(folder) / "in" / f"{i:08d}.txt").write_bytes(text.encode())
        subprocess.run([arguments.sestina, "data", "tokenize", f"{folder}/in", "--tokenizer", arguments.tokenizer,
                        "--output", f"{folder}/out", "--no-end"], check=True)
        ours = read_megatron(f"{folder}/out")
    theirs = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    different = sum(a != b for a, b in zip(ours, theirs)) + abs(len(ours) - len(theirs))
    print(f"{len(texts)} texts, {sum(len(t.encode()) for t in texts)} bytes, {sum(map(len, theirs))} ids, {different} differ")
    return 1 if different else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("make").add_argument("folder")
    parse_compare = verbs.add_parser("compare")
    parse_compare.add_argument("sestina")
    parse_compare.add_argument("tokenizer")
    parse_compare.add_argument("text", nargs="*")
    parse_compare.add_argument("--seed", type=int, default=1)
    parse_compare.add_argument("--count", type=int, default=2000)
    given = parser.parse_args()
    sys.exit(make(given.folder) if given.verb == "make" else compare(given))
