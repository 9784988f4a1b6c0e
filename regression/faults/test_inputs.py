"""Faults 17 to 21: token files, safetensors, tokenizers and decks that are not what they should be."""

import array
import json
import os
import random
import struct
import unittest

from sestina import BAD_DATA, BAD_DECK, CANNOT_CREATE, Case, DECK, DONE, INPUT_MISSING

TOKENS = [i * 7 % 251 for i in range(5000)]


def llmc(tokens, magic=20240520, version=1, count=None, kind="H"):
    head = array.array("i", [0] * 256)
    head[0:3] = array.array("i", [magic, version, len(tokens) if count is None else count])
    return head.tobytes() + array.array(kind, tokens).tobytes()


def npy(tokens, descr="<u2", shape=None, magic=b"\x93NUMPY\x01\x00"):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({len(tokens) if shape is None else shape},), }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return magic + struct.pack("<H", len(head)) + head.encode() + array.array("H", tokens).tobytes()


def megatron_index(lengths, pointers=None, documents=None, magic=b"MMIDIDX\x00\x00", version=1, code=8, counts=None):
    if pointers is None:
        pointers = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    if documents is None:
        documents = list(range(len(lengths) + 1))
    sequences, entries = counts or (len(lengths), len(documents))
    return (magic + struct.pack("<QBQQ", version, code, sequences, entries) + array.array("i", lengths).tobytes() +
            array.array("q", pointers).tobytes() + array.array("q", documents).tobytes())


def safetensors(header, body=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


class Inputs(Case):
    def refuse(self, fmt, name, *texts, expected=BAD_DATA):
        """Training refuses the source before the first update, and names the file."""
        self.deck.write_text(DECK.replace('format = "text"', f'format = "{fmt}"').replace("text.txt", name))
        output = self.train("run-" + str(random.random())[2:], expected=expected)
        for text in (name, *texts):
            self.assertIn(text, output)
        self.assertNotIn("step      1", output)

    def test_17_llmc_files(self):
        good = llmc(TOKENS)
        defects = {"magic": llmc(TOKENS, magic=1), "version": llmc(TOKENS, version=9), "count": llmc(TOKENS, count=6000),
                   "negative": llmc(TOKENS, count=-1), "none": llmc([]), "short": llmc(TOKENS[:20]), "cut": good[:700], "empty": b"",
                   "beyond": llmc(TOKENS[:300] + [256] + TOKENS[300:])}
        (self.work / "good.bin").write_bytes(good)
        self.deck.write_text(DECK.replace('format = "text"', 'format = "llmc"').replace("text.txt", "good.bin"))
        self.train("good", "run.steps=2", expected=DONE)
        for name, data in defects.items():
            with self.subTest(name):
                (self.work / f"{name}.bin").write_bytes(data)
                self.refuse("llmc", f"{name}.bin")

    def test_17_npy_files(self):
        defects = {"magic": npy(TOKENS, magic=b"\x93NUMPX\x01\x00"), "shape": npy(TOKENS, shape=9999), "type": npy(TOKENS, descr="<f4"),
                   "cut": npy(TOKENS)[:60], "beyond": npy(TOKENS + [60000]), "huge": npy(TOKENS, shape=1 << 62)}
        for name, data in defects.items():
            with self.subTest(name):
                (self.work / f"{name}.npy").write_bytes(data)
                self.refuse("npy", f"{name}.npy")

    def test_17_text_files(self):
        (self.work / "empty.txt").write_bytes(b"")
        self.refuse("text", "empty.txt")
        (self.work / "short.txt").write_text("too short")
        self.refuse("text", "short.txt")
        self.refuse("text", "missing.txt", expected=INPUT_MISSING)

    def test_17_pipes_are_not_waited_for(self):
        """Deck, data, index and tokenizer: what is no regular file is refused at once, on one rank and on several."""
        pipe = self.work / "pipe.txt"
        os.mkfifo(pipe)
        os.mkfifo(self.work / "half.bin")
        (self.work / "half.idx").write_bytes(megatron_index([1000] * 5))
        for ranks in (1, 2) if "MPIEXEC" in os.environ and os.environ["MPIEXEC"] else (1,):
            for keys in (("-i", pipe), (f"data.source.0.path={pipe}",), (f"data.tokenizer={pipe}",), ("-i", "/dev/null"), (f"data.source.0.path=/dev/zero",),
                         (f"data.source.0.path={self.work / 'half'}", "data.source.0.format=megatron"),
                         (f"data.source.0.path={self.work / 'half.bin'}", "data.source.0.format=llmc")):
                with self.subTest(f"{ranks} {keys}"):
                    arguments = self.train_arguments("run", *keys)
                    child = self.start(*arguments) if ranks == 1 else self.start_ranks(ranks, *arguments)
                    output = self.finish(child, INPUT_MISSING)[1]
                    self.assertIn("regular file", output)
                    self.assertEqual(output.count("sestina: error:"), 1, output)

    def test_17_names_that_are_too_long(self):
        name = "x" * 300
        for keys, code in ((("-i", name), INPUT_MISSING), ((f"data.source.0.path={name}",), INPUT_MISSING), ((f"data.tokenizer={name}",), INPUT_MISSING),
                           ((f"data.source.0.path={name}", "data.source.0.format=npy"), INPUT_MISSING), (("-r", name), INPUT_MISSING),
                           ((f"data.source.0.path={name}", "data.source.0.format=megatron"), INPUT_MISSING),
                           (("-d", self.work / name), CANNOT_CREATE), (("-r", "auto", "-d", self.work / name), CANNOT_CREATE)):
            with self.subTest(str(keys)[:60]):
                output = self.train("run", "run.steps=2", *keys, expected=code)
                self.assertIn(name, output)

    def test_18_megatron_indexes(self):
        lengths = [1000] * 5
        defects = {"magic": megatron_index(lengths, magic=b"MMIDIDY\x00\x00"), "version": megatron_index(lengths, version=2),
                   "code": megatron_index(lengths, code=77), "order": megatron_index(lengths, pointers=[0, 4000, 2000, 6000, 8000]),
                   "beyond": megatron_index(lengths, pointers=[0, 2000, 4000, 6000, 9000]),
                   "negative": megatron_index([1000, -1000, 2000, 2000, 1000]),
                   "overflow": megatron_index([2**31 - 1] * 5), "documents": megatron_index(lengths, documents=[]),
                   "document-order": megatron_index(lengths, documents=[0, 3, 2, 4, 5]),
                   "counts": megatron_index(lengths, counts=(2**62, 6)), "cut": megatron_index(lengths)[:50], "empty": b""}
        (self.work / "good.idx").write_bytes(megatron_index(lengths))
        (self.work / "good.bin").write_bytes(array.array("H", TOKENS).tobytes())
        self.deck.write_text(DECK.replace('format = "text"', 'format = "megatron"').replace("text.txt", "good"))
        self.train("good", "run.steps=2", expected=DONE)
        for name, data in defects.items():
            with self.subTest(name):
                (self.work / f"{name}.idx").write_bytes(data)
                (self.work / f"{name}.bin").write_bytes(array.array("H", TOKENS).tobytes())
                self.refuse("megatron", name)

    def test_19_safetensors(self):
        f32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        body = bytes(8)
        defects = {
            "header-size": struct.pack("<Q", 2**63) + b"{}", "short": safetensors({"a": f32}, b"123"), "empty": b"",
            "hole": safetensors({"a": f32, "b": f32 | {"data_offsets": [12, 20]}}, bytes(20)),
            "overlap": safetensors({"a": f32, "b": f32 | {"data_offsets": [4, 12]}}, bytes(12)),
            "twice": safetensors(b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', body),
            "dtype": safetensors({"a": f32 | {"dtype": "F33"}}, body), "shape": safetensors({"a": f32 | {"shape": [2**40, 2**40]}}, body),
            "negative": safetensors({"a": f32 | {"shape": [-2]}}, body), "not-json": safetensors(b"{nonsense", body),
            "nested": safetensors(b"[" * 100000, body), "lacking": safetensors({"a": f32}, body)}
        config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 16,
                  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 256,
                  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
                  "tie_word_embeddings": True, "attention_bias": False}
        for name, data in defects.items():
            with self.subTest(name):
                folder = self.work / name
                folder.mkdir()
                (folder / "config.json").write_text(json.dumps(config))
                (folder / "model.safetensors").write_bytes(data)
                output = self.run_sestina("checkpoint", "import", folder, "-d", self.work / f"run-{name}", expected=BAD_DATA)
                self.assertIn(name, output)
                self.assertFalse((self.work / f"run-{name}/checkpoints/step_00000000").exists())

    def test_20_tokenizers(self):
        defects = {"empty": "", "not-json": "{", "model": json.dumps({"model": {"type": "Unigram", "vocab": []}}), "deep": "[" * 200000,
                   "no-model": "{}", "ids": json.dumps({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}),
                   "merges": json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})}
        for name, text in defects.items():
            with self.subTest(name):
                path = self.work / f"{name}.json"
                path.write_text(text)
                output = self.run_sestina("data", "tokenize", "--tokenizer", path, self.work / "text.txt", "-o", self.work / "out",
                                          expected=BAD_DATA)
                self.assertIn(f"{name}.json", output)
        self.run_sestina("data", "tokenize", "--tokenizer", self.work / "none.json", self.work / "text.txt", "-o", self.work / "out",
                         expected=INPUT_MISSING)

    def test_20_long_runs_and_bad_utf8(self):
        """A very long run of spaces comes out of a byte-level tokenizer as it went in; bytes that are no UTF-8 are no text."""
        tokenizer = self.work / "tokenizer.json"
        self.run_sestina("data", "train-tokenizer", self.work / "text.txt", "-o", tokenizer, "--vocab-size", "300")
        (self.work / "spaces.txt").write_bytes(b" " * 20_000_000)
        (self.work / "broken.txt").write_bytes(bytes(random.Random(1).randbytes(100000)))
        for name, expected in (("spaces", DONE), ("broken", INPUT_MISSING)):
            self.run_sestina("data", "tokenize", "--tokenizer", tokenizer, self.work / f"{name}.txt", "-o", self.work / name, expected=expected)
        self.run_sestina("data", "verify", self.work / "spaces")

    def test_21_decks(self):
        defects = {
            "unknown": (DECK.replace("hidden_size = 32", "hiden_size = 32"), ["hiden_size", "hidden_size", ":9:"]),
            "type": (DECK.replace("steps = 40", 'steps = "many"'), ["steps", "many", ":6:"]),
            "twice": (DECK.replace("seed = 3", "seed = 3\nseed = 4"), [":3:"]),
            "nan": (DECK.replace("lr = 3e-3", "lr = nan"), ["schedule.lr", ":24:"]),
            "infinite": (DECK.replace("lr = 3e-3", "lr = inf"), ["lr"]),
            "negative": (DECK.replace("global_batch = 4", "global_batch = -4"), ["global_batch", "-4"]),
            "choice": (DECK.replace('"llama"', '"lama"'), ["lama", "llama"]),
            "syntax": (DECK.replace("[model]", "[model"), [":7:"]),
            "value": (DECK.replace("seed = 3", "seed = "), [":2:"])}
        for name, (text, parts) in defects.items():
            with self.subTest(name):
                self.deck.write_text(text)
                output = self.train("run", "-n", expected=BAD_DECK)
                for part in parts:
                    self.assertIn(part, output)
                self.assertFalse((self.work / "run").exists())

    def test_21_all_errors_at_once(self):
        self.deck.write_text(DECK.replace("hidden_size = 32", "hiden_size = 32").replace("lr = 3e-3", "lr = -1").replace("global_batch", "globl_batch"))
        output = self.train("run", "-n", expected=BAD_DECK)
        for part in ("hiden_size", "schedule.lr", "globl_batch"):
            self.assertIn(part, output)

    def test_21_one_message_for_one_wrong_key(self):
        """What may only follow from a wrong value is not told."""
        for key in ("model.hidden_size=-7", "model.hidden_size={a=1}", "model.num_attention_heads=-7", "model.vocab_size=-7", "optimizer.kind=-7",
                    "model.max_position_embeddings=0", "train.global_batch=-1", "schedule.warmup_steps=x"):
            with self.subTest(key):
                self.deck.write_text(DECK + '[parallel]\ntp = 1\n[optimizer]\nkind = "soap"\nmax_dim = 64\n[optimizer.refresh]\nevery = 5\n')
                output = self.train("run", "-n", key, expected=BAD_DECK)
                self.assertEqual(len(output.splitlines()), 1, output)
                self.assertIn(key.split("=")[0], output)

    def test_21_too_many_threads(self):
        for key in ("run.threads=513", "run.threads=1024"):
            self.assertIn("<= 512", self.train("run", "-n", key, expected=BAD_DECK))
        for number in ("600", "1024", "4096", "100000", "99999999999999999999"):
            with self.subTest(number):
                output = self.train("run", "run.threads=0", "run.steps=2", environment={"OMP_NUM_THREADS": number}, expected=BAD_DECK)
                self.assertIn("allowed 1 to 512", output)
                self.assertFalse((self.work / "run").exists())

    def test_21_encodings(self):
        good = DECK.encode()
        self.train("run", "-n", expected=DONE)
        self.deck.write_bytes(good.replace(b"\n", b"\r\n"))
        self.assertIn(":1:", self.train("run", "-n", expected=BAD_DECK))
        self.deck.write_bytes(b"\xef\xbb\xbf" + good)
        self.assertIn(":1:1:", self.train("run", "-n", expected=BAD_DECK))
        self.deck.write_bytes(good.replace(b"[model]", b"# \xff\xfe\n[model]"))
        self.train("run", "-n", expected=BAD_DECK)
        self.deck.write_bytes(bytes(random.Random(2).randbytes(10000)))
        self.train("run", "-n", expected=BAD_DECK)
        self.deck.write_bytes(good + b"\n" + b"# filler line\n" * 750_000)  # 10 MB
        self.assertIn("too large", self.train("run", "-n", expected=BAD_DECK))


if __name__ == "__main__":
    unittest.main(verbosity=2)
