"""Data that change under a run, and data as other people write them."""

import array
import bz2
import gzip
import json
import lzma
import os
import pathlib
import unittest

from sestina import BAD_DECK, Case, DECK, INPUT_MISSING
from test_inputs import TOKENS, llmc, megatron_index, npy

INPUTS = pathlib.Path(__file__).resolve().parents[2] / "inputs"
DATA = TOKENS * 4


class Data(Case):
    def write_all(self):
        """The same tokens in every format; returns format, path of the source, and the file that holds the tokens."""
        files = {"good.bin": llmc(DATA), "good.npy": npy(DATA), "raw.npy": array.array("H", DATA).tobytes(),
                 "pair.bin": array.array("H", DATA).tobytes(), "pair.idx": megatron_index([100] * (len(DATA) // 100))}
        for name, data in files.items():
            (self.work / name).write_bytes(data)
        return [("llmc", "good.bin", "good.bin"), ("npy", "good.npy", "good.npy"), ("npy", "raw.npy", "raw.npy"),
                ("megatron", "pair", "pair.bin"), ("text", "text.txt", "text.txt")]

    def cut_under_run(self, run, name, start, size):
        child = start()
        self.wait_for(lambda: self.steps_done(run) >= 10, child)
        os.truncate(self.work / name, size)
        output = self.finish(child, INPUT_MISSING, 120)[1]
        self.assertIn(name, output)
        self.assertIn("which is saved", output)
        self.assert_one_message(output)
        return self.saved_steps(run)[-1]

    def test_40_a_file_that_shrinks_under_a_run(self):
        """The run ends with 66 and a checkpoint; with the file in its place it goes on to the bits of a run that saw no cut."""
        for i, (form, path, name) in enumerate(self.write_all()):
            with self.subTest(name):
                keys = (f'data.source=[{{format="{form}", path="{path}"}}]', f"train.micro_batch={1 + 3 * (i % 2)}", "metrics.every=1")
                whole = (self.work / name).read_bytes()
                cut, uncut = "cut-" + name, "uncut-" + name
                step = self.cut_under_run(cut, name, lambda: self.start(*self.train_arguments(cut, *keys, "run.steps=1000000")), 0)
                (self.work / name).write_bytes(whole)
                self.train(cut, "-r", "auto", *keys, f"run.steps={step + 5}")
                self.train(uncut, *keys, f"run.steps={step + 5}")
                self.assert_same_run(cut, uncut, step + 5)

    def test_41_a_validation_file_that_shrinks_under_a_run(self):
        self.write_all()
        keys = ('data.validation=[{format="llmc", path="good.bin"}]', "metrics.eval_every=5", "metrics.every=1", "run.steps=1000000")
        self.cut_under_run("run", "good.bin", lambda: self.start(*self.train_arguments("run", *keys)), 2000)

    def test_42_foreign_files_are_refused_by_their_bytes(self):
        text = (self.work / "text.txt").read_bytes()
        rows = b"".join(json.dumps({"text": line}).encode() + b"\n" for line in text.decode().splitlines()[:50])
        lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 42\n"
        cases = {"a.txt": (lzma.compress(text), "xz data"), "b.txt": (bz2.compress(text), "bzip2 data"), "c.jsonl": (lzma.compress(rows), "xz data"),
                 "d.txt": (text.decode().encode("utf-16"), "UTF-16"), "e.txt": (b"caf\xe9\n" * 99, "0xE9 at byte 3"), "f.txt": (lfs, "Git LFS pointer"),
                 "g.txt": (b"PAR1" + bytes(range(256)) + b"PAR1", "Parquet"), "h.json": (b"[" + rows.replace(b"}\n", b"},\n")[:-2] + b"]", "JSON array")}
        for name, (data, word) in cases.items():
            with self.subTest(name):
                (self.work / name).write_bytes(data)
                for arguments in (("data", "tokenize", name, "-o", "out"), self.train_arguments("run", f'data.source=[{{path="{name}"}}]')):
                    output = self.run_sestina(*arguments, expected=INPUT_MISSING)
                    self.assertIn(name, output)
                    self.assertIn(word, output)
        (self.work / "packed.txt").write_bytes(gzip.compress(text[:99]) + gzip.compress(text[99:]) + bytes(512))
        (self.work / "rows.NDJSON").write_bytes(rows)
        for name, count in (("packed.txt", 1), ("rows.NDJSON", 50)):
            found = json.loads(self.run_sestina("data", "tokenize", name, "-o", "out", "--json"))
            self.assertEqual(found["documents"], count)

    def test_43_a_run_shorter_than_its_warm_up(self):
        """Every shipped deck may be tried for a few steps; one without a schedule of its own length says what that means."""
        for deck in sorted(INPUTS.glob("*.toml")):
            with self.subTest(deck.name):
                more = ('data.source=[{path="text.txt"}]',) if not deck.read_text().count("[[data.source]]") else ()
                output = self.run_sestina("train", "-n", "-i", deck, "run.steps=5", *more)
                short = "warmup_steps" in deck.read_text()
                self.assertEqual("ends inside its warm-up" in output, short, output[:300])
                output = self.run_sestina("train", "-n", "-i", deck, "run.steps=5", "schedule.steps=10000", *more)
                self.assertNotIn("warm-up of", output)
        output = self.train("run", "run.steps=2", "schedule.steps=0")
        self.assertIn("schedule.steps=N keeps the rates", output)
        output = self.train("none", "schedule.steps=3", expected=BAD_DECK)
        self.assertIn("beyond the last step of the schedule", output)

    def test_44_a_pattern_that_fits_nothing(self):
        self.deck.write_text(DECK + '[[optimizer.group]]\nmatch = "*.q_porj.*"\nweight_decay = 0\n')
        for arguments in (self.train_arguments("run"), self.train_arguments("run", "-n"), ("plan", "-i", self.deck)):
            output = self.run_sestina(*arguments, expected=BAD_DECK)
            self.assertIn("optimizer.group.0.match: fits no weight of the model, did you mean q_proj for q_porj?", output)
        self.train("run", "-n", 'optimizer.group=[{match="*.1.*", weight_decay=0}]')
        self.assertIn("fits no weight", self.train("run", "-n", 'optimizer.group=[{match="*.2.*", weight_decay=0}]', expected=BAD_DECK))


if __name__ == "__main__":
    unittest.main()
