"""Faults 26 and 27: ranks that were not started equally, and errors on several of them."""

import json
import shutil
import time
import unittest

from sestina import BAD_DATA, BAD_DECK, Case, DIVERGED, DONE, INPUT_MISSING, MICRO, poison


class Agreement(Case):
    def differ(self, run, expected, *ranks, named=(), **options):
        """Ranks with these arguments more end at once, equally and with one message; nothing is saved."""
        begin = time.monotonic()
        child = self.start_unlike(*(self.train_arguments(run, *MICRO, *more) for more in ranks), **options)
        output = self.finish(child, expected)[1]
        self.assert_one_message(output)
        for words in named:
            self.assertIn(words, output)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(list((self.work / run).glob("checkpoints/step_*")), [])
        return output

    def test_26_decks_that_differ(self):
        for key in ("schedule.lr=3e-2", "optimizer.kind=muon", "run.seed=7", "model.vocab_size=300", "model.num_hidden_layers=3",
                    "parallel.partition=layerwise", "parallel.tp=2", "run.steps=7", "checkpoint.every=3", "train.global_batch=8",
                    "train.precision=bf16", "run.deterministic=false", "data.shuffle=false", 'run.stop_signals=["USR1"]',
                    "run.abort_timeout=9", 'optimizer.group=[{match="*", lr_multiplier=0.5}]'):
            with self.subTest(key):
                name = key.split("=")[0]
                output = self.differ("run", BAD_DECK, (), (key,), named=("rank 1 was started differently from rank 0",))
                self.assertRegex(output, rf"on:\n  {name}[.0-9a-z_]*: .* on rank 1, .* on rank 0")  # given before derived
        self.assertFalse((self.work / "run").exists())

    def test_26_one_rank_of_three(self):
        odd = ("schedule.lr=3e-2", "run.seed=4")
        for number in range(3):
            ranks = [odd if r == number else () for r in range(3)]
            other = 1 if number == 0 else 0
            output = self.differ("run", BAD_DECK, *ranks, named=(f"rank {number} was started differently from rank {other}",))
            self.assertIn(f"schedule.lr: 0.03 on rank {number}, 0.003 on rank {other}", output)
            self.assertIn(f"run.seed: 4 on rank {number}, 3 on rank {other}", output)

    def test_26_a_deck_that_is_not_valid_on_one_rank(self):
        self.differ("run", BAD_DECK, (), ("schedule.lr=-1",), named=("rank 1: command line: schedule.lr",))
        self.differ("run", BAD_DECK, ("parallel.dp=3",), (), named=("rank 0: ", "parallel.dp"))
        self.differ("run", INPUT_MISSING, (), ("-i", self.work / "none.toml"), named=("rank 1: ", "none.toml"))
        self.differ("run", BAD_DECK, ("schedule.lr=-1",), ("schedule.lr=-1",), named=("error: command line: schedule.lr",))

    def test_26_command_lines_that_differ(self):
        self.train("old", *MICRO, "run.steps=10", "checkpoint.every=5")
        steps = [self.folder("old", step) for step in (5, 10)]
        self.differ("new", BAD_DECK, ("-r", "auto"), (), named=("-r: not given on rank 1, auto on rank 0",))
        self.differ("new", BAD_DECK, ("-r", steps[0]), ("-r", steps[1]), named=("-r: ", "step_00000010", "step_00000005"))
        self.differ("new", BAD_DECK, ("-t", "00:01:00"), ("-t", "00:02:00"), named=("-t: ",))
        self.differ("new", BAD_DECK, ("-r", steps[0], "--weights-only"), ("-r", steps[0]), named=("--weights-only",))
        self.differ("new", BAD_DECK, (), ("-d", self.work / "elsewhere"), named=("rank 1: run.dir", "elsewhere"))
        # The same folder under two names is the same folder.
        (self.work / "alias").symlink_to(self.work / "old")
        ranks = [("train", "-i", self.deck, "-d", self.work / "fork", "-r", where, *MICRO, "run.steps=12")
                 for where in (self.work / "old", self.work / "alias")]
        self.finish(self.start_unlike(*ranks), DONE)

    def test_26_programs_that_differ(self):
        commit = json.loads(self.run_sestina("info", "--json"))["commit"].encode()
        other = self.work / "other"
        other.write_bytes(self.sestina.read_bytes().replace(commit, commit[::-1]))
        other.chmod(0o755)
        self.differ("run", BAD_DECK, (), (), programs=(self.sestina, other), named=("program version: ", commit.decode()))

    def test_26_processors_that_differ(self):
        other = self.work / "other"
        other.write_text(f'#!/bin/sh\nONEDNN_MAX_CPU_ISA=SSE41 exec {self.sestina} "$@"\n')
        other.chmod(0o755)
        mixture = ('model.family="qwen3_moe"', "model.num_experts=4", "model.num_experts_per_tok=2", "model.moe_intermediate_size=32",
                   "parallel.tp=2")
        for keys, named in ((("run.audit_every=2",), "run.audit_every: got "), (mixture, "parallel.tp of a mixture of experts: got ")):
            self.differ("run", BAD_DECK, keys, keys, programs=(self.sestina, other), named=(named, "on rank 1, which give other bits"))
        self.finish(self.start_unlike(*[self.train_arguments("dense", *MICRO, "parallel.tp=2", "run.steps=4")] * 2,
                                      programs=(self.sestina, other)), DONE)

    def test_26_data_that_differ(self):
        text = (self.work / "text.txt").read_text()
        (self.work / "other.txt").write_text(text + "x")
        (self.work / "same.txt").write_text(text)
        path = "data.source.0.path="
        self.differ("run", BAD_DATA, (), (path + str(self.work / "other.txt"),), named=("data.source.0.path: ", "other.txt", "60"))
        self.run_sestina("data", "train-tokenizer", self.work / "text.txt", "-o", self.work / "a.json", "--vocab-size", 300)
        self.run_sestina("data", "train-tokenizer", self.work / "text.txt", "-o", self.work / "b.json", "--vocab-size", 301)
        self.differ("run", BAD_DATA, *(("model.vocab_size=320", f"data.tokenizer={self.work / name}") for name in ("a.json", "b.json")),
                    named=("data.tokenizer: ", "a.json", "b.json"))
        self.finish(self.start_unlike(self.train_arguments("same", *MICRO, "run.steps=3"),
                                      self.train_arguments("same", *MICRO, "run.steps=3", path + str(self.work / "same.txt"))), DONE)

    def test_26_what_may_differ(self):
        """Threads, where a key comes from, and paths from other working directories to the same content."""
        other = self.work / "other"
        other.mkdir()
        for name in ("deck.toml", "text.txt"):
            shutil.copy(self.work / name, other / name)
        (other / "deck.toml").write_text((other / "deck.toml").read_text().replace("lr = 3e-3", "lr = 0.01").replace("threads = 1", "threads = 2"))
        keys = ("train", "-i", "deck.toml", *MICRO, "run.steps=3", "-d")
        self.finish(self.start_unlike((*keys, self.work / "run", "schedule.lr=1e-2"), (*keys, self.work / "run"),
                                      folders=(self.work, other)), DONE)
        output = self.finish(self.start_unlike((*keys, "run2", "schedule.lr=1e-2"), (*keys, "run2"), folders=(self.work, other)), BAD_DECK)[1]
        self.assertIn("run.dir", output)
        (other / "text.txt").write_text("another text " * 5000)
        self.finish(self.start_unlike((*keys, self.work / "run3", "schedule.lr=1e-2"), (*keys, self.work / "run3"),
                                      folders=(self.work, other)), BAD_DATA)

    def test_27_errors_on_several_ranks(self):
        """The same on all, or on some: one message."""
        for names in (("none.txt",) * 3, ("text.txt", "none.txt", "nothing.txt")):
            self.differ("run", INPUT_MISSING, *((f"data.source.0.path={self.work / name}",) for name in names), named=("none.txt",))
        many = [("run.threads=0",)] * 3
        self.differ("run", BAD_DECK, *many, named=("OMP_NUM_THREADS", "512"), environment={"OMP_NUM_THREADS": "1024"})

    def test_27_errors_of_eval_on_several_ranks(self):
        """Each with its own code and one message, whichever rank it hits."""
        self.train("run", *MICRO, "run.steps=5")
        run, deck = ("eval", "-r", self.work / "run"), ("-i", self.deck)
        shutil.copytree(self.folder("run", 5), self.work / "bad")
        poison(self.work / "bad", "layers.1.mlp.up_proj.weight")
        for expected, words, *ranks in (
                (INPUT_MISSING, "no such checkpoint folder", ("eval", "-r", self.work / "none"), ("eval", "-r", self.work / "none")),
                (INPUT_MISSING, "none.jsonl", (*run, "--choices", "none.jsonl"), (*run, "--choices", "none.jsonl")),
                (BAD_DECK, "does not divide the 3 ranks", *[(*run, "parallel.tp=2")] * 3),
                (BAD_DECK, "more pipeline stages than layers", *[(*run, "parallel.pp=64")] * 2),
                (BAD_DECK, "metrics.eval_batches: 3 on rank 1, 2 on rank 0", *[(*run, f"metrics.eval_batches={n}") for n in (2, 3)]),
                (BAD_DECK, "--choices: given on rank 1, not given on rank 0", run, (*run, "--choices", "none.jsonl")),
                (BAD_DECK, "rank 1: command line: schedule.lr", (*run, *deck), (*run, *deck, "schedule.lr=-1")),
                (INPUT_MISSING, "none.txt", *[(*run, *deck, f"data.source.0.path={self.work / name}") for name in ("text.txt", "none.txt")]),
                (DIVERGED, "layers.1.mlp.up_proj.weight", *[("eval", "-r", self.work / "bad")] * 2),
                (DIVERGED, "layers.1.mlp.up_proj.weight", *[("eval", "-r", self.work / "bad", "parallel.pp=2")] * 2)):
            with self.subTest(words):
                output = self.finish(self.start_unlike(*ranks), expected)[1]
                self.assert_one_message(output)
                self.assertIn(words, output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
