#!/usr/bin/env python3
"""Random texts through tokenizers of many kinds, in Sestina and in the Python package `tokenizers` (0.23.3): equal ids, or a
refusal with exit code 65.

  tokenizer_fuzz.py build/bin/sestina [--seed N] [--count N] [--only NAME]
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tokenizer_reference import LLAMA3, QWEN, TEXT, random_text, read_megatron

CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)"
          r"|\s+")
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
O200K = (WORD + r"*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|" + WORD +
         r"+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"]
NAMED = [AddedToken("<|endoftext|>"), AddedToken("<|end|>\n"), AddedToken("<mask>", lstrip=True),
         AddedToken("<right>", rstrip=True), AddedToken("<both>", lstrip=True, rstrip=True)]
WORDS = [AddedToken("word", single_word=True, normalized=False), AddedToken("the", single_word=True),
         AddedToken("cafe\u0301", normalized=True), AddedToken("l r", lstrip=True, rstrip=True, single_word=True),
         AddedToken("\nX", normalized=True), AddedToken("a\nb"), AddedToken("<|", normalized=True),
         AddedToken(" ", normalized=False, single_word=True)]
PARTS = ["<|endoftext|>", "<|end|>\n", "<|end|>", "<mask>", " <mask>", "<right>\n", "<right> \n ", " <both> \n", "word", " the ",
         "\nthe\n", "cafe\u0301", "caf\u00e9", "l r", "\nX", "a\nb", "x\ny", ".\nZ", "\n", "\r\n", "\r", "\0", "\x1b", "\x7f",
         "\u200d", "\u2028", "\u0085", "\ufeff", "\U0001FA77", "\U0001FAE9", "\u1c89", "\U000105C0", "\u30fc", "\u0640",
         "\u3001", "\u0964", "\u061f", "\u17f0", "\ua7cb", "\u1e9e", "\u017f", "\u212a", "\u0130", "\ufb06", "\uabcd",
         "'S", "'\u017f", "'LL", "\u02bcn", "123456", "\u0661\u0662", "\u2167", "\u00b2", "\u3007", "\u5341"]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def level(prefix=False, regex=False, trim=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex, trim_offsets=trim)


def kinds():
    """name: (pre-tokenizer, normalizer, options of the model, names of the added tokens)"""
    steps = lambda *parts: pre_tokenizers.Sequence(list(parts))
    nfc = normalizers.NFC()
    digits = pre_tokenizers.Digits
    result = {}
    for prefix in (False, True):
        for tokens in ([], NAMED, NAMED + WORDS):
            name = f"{'_prefix' if prefix else ''}{len(tokens)}"
            result["gpt2" + name] = (level(prefix, True), None, {}, tokens)
            result["gpt2_nfc" + name] = (level(prefix, True), nfc, {}, tokens)
    result["gpt2_trim"] = (level(True, True, False), None, {}, NAMED)
    for name, pattern in (("llama3", LLAMA3), ("qwen", QWEN), ("cl100k", CL100K), ("o200k", O200K), ("qwen35", QWEN35)):
        result[name] = (steps(split(pattern), level()), nfc if "qwen" in name else None, {"ignore_merges": name == "llama3"},
                        NAMED + WORDS)
        result[name + "_removed"] = (steps(split(pattern, "removed", True), level()), None, {}, [])
    result["deepseek"] = (steps(*map(split, DEEPSEEK), level()), None, {}, NAMED)
    result["starcoder"] = (steps(digits(True), level(False, True)), None, {}, NAMED)
    result["digits_prefix"] = (steps(digits(False), level(True, True)), None, {}, WORDS)
    result["two"] = (steps(split(LLAMA3), level(True, True)), None, {}, NAMED)
    for i, pattern in enumerate((r"\n", r"[^\n]+\n", r"(?<=\n)[a-z]+", r"\p{Lu}+|\p{^L}\s", r"x*", r".*\n?", r"\p{Han}|\p{P}",
                                 r"[\p{Sm}\p{So}]+", r"\P{M}\p{M}+", r"[^\P{L}a-z]+", r"(?i:straSSe|k|\u0130)", r"(?i:[k-s]+)",
                                 r"(?i:\p{Lu}+)", r"(?i:fi|st)", r"\p{Greek}+|\p{Cyrillic}", r"[\p{Arabic}\p{Katakana}]+",
                                 r"\d+|[\d\s]+", r"(?i:[^k]+)", r"\S+", r" +(?!\S)", r"\x{1F600}-?|\u00e9", "é|ﬆ|(?i:É)")):
        for behavior in ("isolated", "removed"):
            result[f"own{i}_{behavior}"] = (steps(split(pattern, behavior), level()), None, {}, NAMED)
    for behavior in ("merged_with_previous", "merged_with_next", "contiguous"):
        result[behavior] = (steps(split(r"\p{P}", behavior), level()), None, {}, [])
    text = pre_tokenizers.Split("the ", "isolated")
    result["string"] = (steps(text, level()), None, {}, [])
    for name, n in (("nfkc", normalizers.NFKC()), ("nfd", normalizers.NFD()), ("prepend", normalizers.Prepend("_")),
                    ("replace", normalizers.Replace("a", "b")), ("lower", normalizers.Lowercase()),
                    ("strip", normalizers.Strip()), ("nfc_twice", normalizers.Sequence([nfc, nfc])),
                    ("none", normalizers.Sequence([])), ("byte_level", normalizers.ByteLevel())):
        result["normal_" + name] = (level(False, True), n, {}, NAMED)
    result["byte_fallback"] = (level(False, True), None, {"byte_fallback": True}, [])
    result["missing"] = (level(True, True), nfc, {}, NAMED)  # without x, y and z
    result["unk"] = (level(False, True), None, {"unk_token": "a", "fuse_unk": True}, [])
    return result


def build(kind, alphabet):
    pre, normalizer, options, tokens = kind
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    lines = TEXT.splitlines(True) * 3
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))
    for token in tokens:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
    return tokenizer


def mixed(rng, length):
    text = ""
    while len(text) < length:
        text += rng.choice(PARTS) if rng.random() < .5 else random_text(rng, rng.randrange(1, 30))
    return text


def around_the_cut(rng):
    """Lines of words, longer than a document that is cut, with odd things near the places where a cut may fall."""
    text = ""
    while len(text) < 600_000:
        text += "word and other words\nthe next line\n" * rng.randrange(1, 4000) + mixed(rng, rng.randrange(1, 60))
    return text


def ours(sestina, folder, texts):
    (folder / "in.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    run = subprocess.run([sestina, "data", "tokenize", folder / "in.jsonl", "--tokenizer", folder / "t.json", "--output",
                          folder / "out", "--no-end"], capture_output=True, text=True)
    if run.returncode == 0:
        return read_megatron(str(folder / "out")), ""
    return run.returncode, run.stderr.strip().splitlines()[-1][:150]


def compare(name, kind, arguments):
    rng = random.Random(f"{arguments.seed} {name}")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = build(kind, [c for c in alphabet if name not in ("unk", "missing") or c not in "xyz"])
    texts = [mixed(rng, rng.randrange(1, 200)) for _ in range(arguments.count)] + [around_the_cut(rng)]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        tokenizer.save(str(folder / "t.json"))
        got, said = ours(arguments.sestina, folder, texts)
    if isinstance(got, int):
        print(f"{name}: exit {got}: {said}")
        return got != 65
    pairs = [(t, e.ids) for t, e in zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False)) if e.ids]
    wrong = [t for (t, ids), mine in zip(pairs, got) if ids != mine]  # documents without an id are not written
    print(f"{name}: {len(texts)} texts, {len(wrong)} differ" + (f", the shortest: {min(wrong, key=len)[:300]!r}" if wrong else ""))
    return bool(wrong) or len(got) != len(pairs)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sestina")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    sys.exit(sum([compare(name, kind, given) for name, kind in kinds().items() if given.only in name]) > 0)
