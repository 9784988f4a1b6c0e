"""Faults 1 to 6, 9, 10, 12 to 16, 22, 25 and 40 on several ranks: one message, one exit code, nothing lost."""

import json
import os
import random
import re
import shutil
import signal
import struct
import time
import unittest

from sestina import (BAD_DATA, BAD_DECK, Case, DIVERGED, DONE, HUP, INPUT_MISSING, IO_ERROR, KILL, MICRO, STOPPED_SAVED, STOPPED_UNSAVED, TERM,
                     UNAVAILABLE, flip_bit, rounds)


class Ranks(Case):
    def run_and_signal(self, run, number, rank, ranks, *more, after=20):
        child = self.start_ranks(ranks, *self.train_arguments(run, *MICRO, *more))
        processes = self.rank_processes(child, ranks)
        self.wait_for(lambda: self.steps_done(run) >= after, child)
        os.kill(processes[rank], number)
        return child

    def test_00_any_number_of_ranks_gives_the_same_run(self):
        self.train("one", *MICRO, "optimizer.kind=muon")
        self.train_ranks(2, "two", *MICRO, "optimizer.kind=muon")
        self.train_ranks(4, "four", *MICRO, "optimizer.kind=muon")
        self.assertEqual(self.losses("one"), self.losses("two"))
        self.assertEqual(self.losses("one"), self.losses("four"))

    def test_01_one_rank_killed_while_saving(self):
        choose, steps = random.Random(), max(400, 40 * rounds(10))
        keys = (*MICRO, f"run.steps={steps}", "checkpoint.every=5", "checkpoint.keep=2", "run.abort_timeout=5")
        self.train_ranks(3, "whole", *keys)
        for _ in range(rounds(10)):
            child = self.start_ranks(3, *self.train_arguments("killed", "-r", "auto", *keys))
            processes = self.rank_processes(child, 3)
            while child.poll() is None and not any((self.work / "killed").glob(f"checkpoints/step_*.tmp-{processes[0]}")):
                time.sleep(0.001)
            time.sleep(choose.uniform(0, 0.05))
            lost = choose.randrange(3)
            try:
                os.kill(processes[lost], KILL)
            except ProcessLookupError:
                pass
            begin = time.monotonic()
            code, output = self.finish(child)
            if code == DONE:
                break
            self.assertRegex(output, rf"rank {lost} .*signal 9")  # the launcher names it
            self.assertLess(time.monotonic() - begin, 20)
            self.assertNotIn(".tmp-", self.run_sestina("checkpoint", "list", self.work / "killed"))
        self.train_ranks(3, "killed", "-r", "auto", *keys)
        self.run_sestina("checkpoint", "verify", self.work / "killed", "--full")
        self.assert_nothing_left("killed")
        self.assert_same_run("whole", "killed", steps)

    def test_01_killed_where_blocks_take_turns(self):
        keys = (*MICRO, "optimizer.kind=muon", "checkpoint.every=10")
        child = self.start_ranks(2, *self.train_arguments("killed", *keys, "parallel.shard=weights", "run.steps=100000", "run.abort_timeout=5"))
        processes = self.rank_processes(child, 2)
        self.wait_for(lambda: len(self.saved_steps("killed")) > 1, child)
        os.kill(processes[1], KILL)
        self.assertNotEqual(self.finish(child)[0], DONE)
        saved = max(self.saved_steps("killed"))
        self.train_ranks(2, "killed", "-r", "auto", *keys, "parallel.shard=gradients", f"run.steps={saved + 5}")
        self.train_ranks(4, "killed", "-r", "auto", *keys, f"run.steps={saved + 10}")
        self.train_ranks(4, "whole", *keys, f"run.steps={saved + 10}")
        self.assert_same_run("whole", "killed", saved + 10)

    def kill_with_staged_ranks(self, run, keys):
        """Two ranks have staged step 100; a pipe in the place of a shard holds one copy up. Both are killed."""
        child = self.start_ranks(2, *self.train_arguments(run, *keys, "run.steps=1000000"))
        processes = self.rank_processes(child, 2)
        checkpoints = self.work / run / "checkpoints"
        place = checkpoints / f"step_00000100.1.tmp-{processes[0]}"
        self.wait_for(lambda: self.steps_done(run) >= 1, child)  # what others left has been removed
        place.mkdir(parents=True)
        os.mkfifo(place / "shard_00001.h5")
        self.wait_for(lambda: self.steps_done(run) >= 110, child)
        self.wait_for(lambda: len(list(checkpoints.glob("*.staged.tmp-*/rank_*.json"))) == 2, child)
        self.assertTrue((place / "shard_00001.h5").is_fifo())
        self.assertFalse((checkpoints / "latest").is_symlink())
        for process in processes.values():
            os.kill(process, KILL)
        self.finish(child)
        self.assertEqual(self.saved_steps(run), [])

    def staging_keys(self):
        return (*MICRO, "checkpoint.every=100", f"checkpoint.staging_dir={self.work}/fast", "checkpoint.keep=0", "metrics.every=1")

    def test_01_killed_between_stage_and_run_directory(self):
        """Another number of ranks completes it."""
        keys = self.staging_keys()
        self.train("whole", *MICRO, "metrics.every=1", "run.steps=120")
        for again in (2, 3):
            run = f"killed{again}"
            self.kill_with_staged_ranks(run, keys)
            output = self.train_ranks(again, run, "-r", "auto", *keys, "run.steps=120")
            self.assertIn("step_00000100: was on a staging disk when its run was killed; completed now", output)
            self.assertEqual(self.saved_steps(run), [100, 120])
            self.assertEqual(self.manifest(self.folder(run, 100))["layout"]["ranks"], 2)
            self.run_sestina("checkpoint", "verify", self.work / run, "--full")
            self.assertEqual(self.losses(run)[120], self.losses("whole")[120])
            self.assert_nothing_left(run)
            self.assertEqual(list((self.work / "fast").iterdir()), [])

    def test_09_the_stage_of_another_rank_damaged(self):
        """The first rank's own copy is sound: all ranks give up the checkpoint, naming the other's, and none of it is used."""
        keys = self.staging_keys()
        self.train("whole", *MICRO, "metrics.every=1", "run.steps=120")
        self.kill_with_staged_ranks("run", keys)
        shard = next((self.work / "fast").rglob("shard_00001.h5"))
        flip_bit(shard, shard.stat().st_size // 2)
        output = self.train_ranks(2, "run", "-r", "auto", *keys, "run.steps=120")
        self.assertRegex(output, r"step 100 was saved on staging disks alone .* and is given up: \S*fast/\S*shard_00001.h5 on \S+ is not there or damaged")
        self.assertEqual(self.lines("run", "rewind"), [])  # from the beginning
        self.assertEqual(self.saved_steps("run"), [100, 120])
        self.assertEqual(self.losses("run")[120], self.losses("whole")[120])

    def test_01_a_rank_that_hangs(self):
        child = self.run_and_signal("run", signal.SIGSTOP, 2, 3, "run.steps=100000", "run.abort_timeout=2")
        begin = time.monotonic()
        code, output = self.finish(child)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertNotEqual(code, DONE)
        self.assertIn("run.abort_timeout", output)

    def test_01_a_rank_that_hangs_in_start_up(self):
        keys = (*MICRO, "run.steps=100000", "run.start_timeout=2", "run.abort_timeout=2")
        begin = time.monotonic()
        child = self.start_unlike(self.train_arguments("run", *keys), (60,), programs=(self.sestina, "sleep"))
        output = self.finish(child, UNAVAILABLE)[1]  # it never comes to MPI
        self.assertRegex(output, 'waited 2 s for the other ranks in start-up, phase "start of MPI" .run.start_timeout.')
        child = self.start_ranks(3, *self.train_arguments("run", *keys))
        processes = self.rank_processes(child, 3)
        self.wait_for((self.work / "run" / "lock").exists, child)
        os.kill(processes[2], signal.SIGSTOP)
        output = self.finish(child, UNAVAILABLE)[1]
        self.assertRegex(output, "waited 2 s for .*(start-up, phase|run.abort_timeout)")  # how far it came is chance
        self.assert_one_message(output)
        self.assertLess(time.monotonic() - begin, 40)

    def test_01_a_rank_that_hangs_at_the_end(self):
        """All is saved: the others end, with the run's own code, or as ranks that lost one where not all knew of the save."""
        for delay in (0.002, 0.03):
            run = f"run{delay}"
            child = self.start_ranks(3, *self.train_arguments(run, *MICRO, "run.steps=10", "run.abort_timeout=2"))
            processes = self.rank_processes(child, 3)
            self.wait_for(lambda: child.poll() is not None or self.saved_steps(run) == [10], child)
            time.sleep(delay)
            try:
                os.kill(processes[1], signal.SIGSTOP)
            except ProcessLookupError:
                pass
            def others_ended():
                return not any(self.catches(processes[rank], TERM) for rank in (0, 2))
            end = time.monotonic() + 30
            while not others_ended():
                self.assertLess(time.monotonic(), end, "the others are held")
                time.sleep(0.05)
            try:
                os.kill(processes[1], KILL)  # after the last meeting no rank is held, but the launcher waits for each process
            except ProcessLookupError:
                pass
            self.finish(child, (DONE, UNAVAILABLE, 128 + KILL))
            self.run_sestina("checkpoint", "verify", self.folder(run, 10))

    def test_02_term_to_a_single_rank(self):
        steps = 300
        self.train_ranks(2, "whole", *MICRO, f"run.steps={steps}")
        for rank in (0, 1):
            run = f"stopped{rank}"
            child = self.run_and_signal(run, TERM, rank, 2, f"run.steps={steps}")
            self.finish(child, STOPPED_SAVED)
            self.assertLess(self.steps_done(run), steps)
            self.assertEqual(self.saved_steps(run), [self.steps_done(run)])
            self.train_ranks(2, run, *MICRO, "-r", "auto", f"run.steps={steps}")
            self.assert_same_run("whole", run, steps)

    def test_02_hup_saves_and_goes_on(self):
        child = self.run_and_signal("run", HUP, 1, 2, "run.steps=600")
        self.finish(child, DONE)
        self.assertEqual(len(self.saved_steps("run")), 2)

    def test_03_term_at_any_time(self):
        for i, delay in enumerate((0, 0.01, 0.03, 0.1, 0.3, 0.8)):
            child = self.start_ranks(2, *self.train_arguments("run", "-r", "auto", *MICRO, "run.steps=100000", "metrics.eval_every=3",
                                                              "data.validation_fraction=0.1"))
            process = self.rank_processes(child, 2)[i % 2]
            self.wait_for(lambda: self.catches(process, TERM), child)  # before main the system answers
            saved = self.saved_steps("run")
            time.sleep(delay)
            os.kill(process, TERM)
            code, output = self.finish(child)
            self.assertIn(code, (STOPPED_SAVED,) if saved else (STOPPED_SAVED, STOPPED_UNSAVED), output[-2000:])
            self.assertEqual(code == STOPPED_SAVED, bool(self.saved_steps("run")), output[-2000:])
            self.assertNotIn("error:", output)
            if code == STOPPED_SAVED:
                self.run_sestina("checkpoint", "verify", self.work / "run")

    def test_03_term_while_the_ranks_do_not_meet(self):
        """MPI_Init waits for a rank that never comes: TERM ends the wait, with the code that tells whether to go on."""
        self.train("old", *MICRO, "run.steps=3")
        for run, code in (("new", STOPPED_UNSAVED), ("old", STOPPED_SAVED)):
            child = self.start_unlike(self.train_arguments(run, *MICRO, "-r", "auto", "run.steps=9"), (60,), programs=(self.sestina, "sleep"))
            process = self.rank_processes(child, 2)[0]
            self.wait_for(lambda: self.catches(process, TERM), child)
            os.kill(process, TERM)
            self.finish(child, code)

    def test_04_a_second_term(self):
        child = self.run_and_signal("run", TERM, 1, 2, "run.steps=100000", "checkpoint.every=2")
        for number in self.rank_processes(child, 2).values():
            try:
                os.kill(number, TERM)
            except ProcessLookupError:
                pass
        self.finish(child, STOPPED_SAVED)
        self.run_sestina("checkpoint", "verify", self.work / "run", "--full")
        self.assert_nothing_left("run")

    def test_05_wall_time(self):
        begin = time.monotonic()
        self.train_ranks(2, "run", *MICRO, "-t", "00:00:04", "run.steps=10000000", "metrics.every=1000", expected=STOPPED_SAVED)
        self.assertLess(time.monotonic() - begin, 12)

    def test_06_no_room(self):
        output = self.train_ranks(2, "run", *MICRO, "model.hidden_size=64", "model.intermediate_size=512", "checkpoint.every=5", expected=IO_ERROR,
                                  blocks=200)
        self.assertIn("two checkpoints in a row", output)
        self.assertEqual(self.saved_steps("run"), [])
        self.assert_nothing_left("run")
        self.assertGreaterEqual(len([line for line in self.lines("run", "checkpoint") if line["error"]]), 2)

    def test_09_10_12_damage(self):
        self.train_ranks(3, "run", *MICRO, "checkpoint.every=20")
        new, spare = self.folder("run", 40), self.work / "spare"
        shutil.copytree(new, spare)
        def flipped():
            flip_bit(new / "shard_00002.h5", (new / "shard_00002.h5").stat().st_size // 2)
        def missing():
            (new / "shard_00001.h5").unlink()
        def swapped():
            (new / "shard_00001.h5").rename(new / "x")
            (new / "shard_00002.h5").rename(new / "shard_00001.h5")
            (new / "x").rename(new / "shard_00002.h5")
        def extra():
            shutil.copy(new / "shard_00001.h5", new / "shard_00003.h5")
        for damage, named in ((flipped, "shard_00002.h5"), (missing, "shard_00001.h5"), (swapped, "shard_0000"), (extra, "shard_00003.h5")):
            with self.subTest(damage.__name__):
                shutil.rmtree(new)
                shutil.copytree(spare, new)
                damage()
                output = self.train_ranks(2, "run", *MICRO, "-r", new, expected=BAD_DATA)
                self.assertIn(named, output)
                self.assert_one_message(output)
        shutil.rmtree(new)
        output = self.train_ranks(2, "run", *MICRO, "-r", "auto")
        self.assertIn("latest", output)  # it points to what is gone
        self.assertEqual(self.lines("run", "rewind")[-1]["step"], 20)

    def test_13_16_another_layout(self):
        """A run that changes its ranks at every start reads the samples of one that never stops: the same bits."""
        keys = (*MICRO, "optimizer.kind=muon")
        self.train("whole", *keys, "run.steps=50")
        for steps, ranks in ((10, 4), (20, 1), (30, 2), (40, 4), (50, 1)):
            self.train_ranks(ranks, "parts", "-r", "auto", *keys, f"run.steps={steps}")
        self.assert_same_run_whole("whole", "parts", 50)
        # Under tensor parallelism and with unaligned parts sums are ordered otherwise: equal to rounding.
        for steps, ranks, tp in ((60, 4, 2), (70, 3, 1), (80, 2, 2)):
            self.train("whole", "-r", "auto", *keys, f"run.steps={steps}")
            self.train_ranks(ranks, "parts", "-r", "auto", *keys, f"run.steps={steps}", f"parallel.tp={tp}")
        a, b = self.losses("whole"), self.losses("parts")
        for step in range(51, 81):
            self.assertAlmostEqual(a[step], b[step], delta=1e-4 * a[step])

    def assert_same_run_whole(self, first, second, step):
        """As assert_same_run, for checkpoints of different layouts: both are rewritten as one shard."""
        for run in (first, second):
            self.run_sestina("checkpoint", "convert", self.folder(run, step), "-o", self.work / f"{run}-whole")
        self.assertEqual(self.tensors(self.folder(f"{first}-whole", step)), self.tensors(self.folder(f"{second}-whole", step)))
        self.assertEqual(self.losses(first), self.losses(second))

    def test_13_splits_that_cannot_be(self):
        for ranks, keys, allowed in ((3, ("parallel.tp=3",), "a divisor of 2"),  # two heads
                                     (5, (), ">= 5"),                            # four sequences
                                     (2, ("parallel.dp=3",), "mpirun -n 3"),
                                     (3, ("parallel.tp=2",), "a multiple of 2"),
                                     (2, ("parallel.tp=2", "parallel.tp_update=distributed"), "home"),
                                     (3, ("parallel.pp=2",), "P divides 2"),
                                     (2, ("parallel.pp=9",), "1 to "),
                                     (2, ("parallel.pp=2", "model.tie_word_embeddings=true", "parallel.schedule=async-1f1b", "parallel.stash=saved"),
                                      "allowed on")):
            with self.subTest(keys):
                output = self.train_ranks(ranks, "run", *MICRO, *keys, expected=BAD_DECK)
                self.assertIn(allowed, output)
                self.assert_one_message(output)
        self.assertFalse((self.work / "run").exists())

    def test_14_odd_sizes_and_ranks_without_parameters(self):
        """A vocabulary that no number of ranks divides, and more ranks than matrices: resumed equals uninterrupted."""
        keys = (*MICRO, "model.vocab_size=259", "model.num_hidden_layers=1", "train.global_batch=8", "optimizer.kind=soap")
        for ranks, tp in ((8, 1), (4, 2)):
            self.train_ranks(ranks, f"whole{tp}", *keys, f"parallel.tp={tp}", "run.steps=12")
            self.train_ranks(ranks, f"parts{tp}", *keys, f"parallel.tp={tp}", "run.steps=5")
            self.train_ranks(ranks, f"parts{tp}", "-r", "auto", *keys, f"parallel.tp={tp}", "run.steps=12")
            self.assert_same_run(f"whole{tp}", f"parts{tp}", 12)

    def test_15_another_optimizer(self):
        self.train_ranks(2, "run", *MICRO, "run.steps=5")
        output = self.train_ranks(2, "fork", *MICRO, "-r", self.folder("run", 5), "optimizer.kind=soap", expected=BAD_DATA)
        self.assertIn("optimizer.on_missing", output)
        self.assert_one_message(output)
        output = self.train_ranks(2, "fork2", *MICRO, "-r", self.folder("run", 5), "optimizer.kind=soap", "optimizer.on_missing=reset")
        self.assertIn("are reinitialised", output)

    def test_22_not_finite_on_one_rank(self):
        """A token that one sample alone holds makes a score of attention overflow: all ranks stop before the update."""
        text = self.work / "text.txt"
        text.write_text(text.read_text()[:3000] + "~" + text.read_text()[3000:])
        self.deck.write_text(self.deck.read_text().replace("[data]", "[data]\nshuffle = false"))
        self.train("good", *MICRO, "run.steps=1")
        folder = self.work / "hf"
        self.run_sestina("checkpoint", "export", self.folder("good", 1), "-o", folder)
        path = folder / "model.safetensors"
        data = bytearray(path.read_bytes())
        size = struct.unpack("<Q", data[:8])[0]
        def set_column(name, value):  # the first one: value(row)
            entry = json.loads(data[8:8 + size])[name]
            rows, cols = entry["shape"]
            for row in range(rows):
                at = 8 + size + entry["data_offsets"][0] + 4 * row * cols
                data[at:at + 4] = struct.pack("<f", value(row))
        set_column("model.embed_tokens.weight", lambda token: 1.0 if token == ord("~") else 0.0)
        for name in ("q_proj", "k_proj"):
            set_column(f"model.layers.0.self_attn.{name}.weight", lambda row: 1e30)
        path.write_bytes(data)
        self.run_sestina("checkpoint", "import", folder, "-d", self.work / "bad", "-i", self.deck, "schedule.lr=0")
        output = self.train_ranks(4, "bad", *MICRO, "-r", "auto", "optimizer.on_missing=reset", "checkpoint.every=1", "run.steps=100",
                                  "schedule.lr=0",
                                  expected=DIVERGED)
        self.assertIn("not finite", output)
        self.assertNotIn("-nan", output)
        self.assertGreater(self.steps_done("bad"), 5)
        self.assertNotIn(float("nan"), self.losses("bad").values())

    def test_24_metrics_of_all_ranks(self):
        """Phases are those of the slowest rank, so they add up to no more than the step; what travels has a phase of its own."""
        self.train_ranks(2, "run", *MICRO, "optimizer.kind=soap", "optimizer.refresh.every=4", "parallel.dp=1", "parallel.tp=2",
                         "metrics.eval_every=5", 'data.validation=[{path="text.txt"}]')
        lines = self.lines("run", "train")
        phases = ("data_s", "forward_backward_s", "reduce_s", "optimizer_s", "refresh_wait_s", "gather_s")
        for line in lines:
            self.assertLessEqual(sum(line[phase] for phase in phases), line["step_s"] * (1 + 1e-9))
            self.assertGreaterEqual(min(line[phase] for phase in phases), 0)
        for phase in ("reduce_s", "gather_s"):
            self.assertGreater(sum(line[phase] for line in lines), 0, phase)
        self.assertEqual(max(line["preconditioner_age_max"] for line in lines), 3)

    def evaluate(self, ranks, *words, model=None):
        """What `eval` prints on so many ranks: the first one prints, and no other."""
        words = ("eval", *(model or ("-r", self.work / "run")), "-i", self.deck, *MICRO, *words, "--json")
        lines = (self.finish(self.start_ranks(ranks, *words), DONE)[1] if ranks > 1 else self.run_sestina(*words)).splitlines()
        lines = [line for line in lines if line.startswith("{")]  # others: warnings, and Kokkos'
        self.assertEqual(len(lines), 1, lines)
        result = json.loads(lines[0])
        del result["model"]
        return result

    def test_13_evaluation_on_any_layout(self):
        """Trained under tensor parallelism; the loss and its error are those of one process: to the bit where nothing else is
        summed, and those of the run's own last evaluation on its layout."""
        keys = ('data.validation=[{path="text.txt"}]', "metrics.eval_batches=7", "metrics.eval_every=5")
        self.train_ranks(2, "run", *MICRO, "run.steps=5", "parallel.tp=2", "parallel.dp=1", *keys)
        one = self.evaluate(1, *keys)
        self.assertEqual(one["windows"], 7)
        self.assertEqual(one, self.evaluate(3, "parallel.tp=1", *keys))
        self.assertEqual(one, self.evaluate(2, "parallel.tp=1", "parallel.pp=2", *keys))
        self.assertEqual(one, self.evaluate(4, "parallel.tp=1", "parallel.pp=2", "parallel.dp=1", *keys))  # 2 x 1 x 2
        split = self.evaluate(2, *keys)  # as the checkpoint's deck says
        self.assertEqual(split["loss"], self.lines("run", "val")[-1]["loss"])
        self.assertEqual(split, self.evaluate(4, *keys))
        for key, value in split.items():
            self.assertAlmostEqual(value, one[key], delta=1e-5 * one[key]) if isinstance(value, float) else self.assertEqual(value, one[key])

    def test_13_choices_and_folders_on_any_layout(self):
        self.train("run", *MICRO, "run.steps=5")
        lines = [{"context": f"the {a} of ", "choices": [f"{b} and", "zq", f"{a}"], "answer": n % 3}
                 for n, (a, b) in enumerate((a, b) for a in ("to", "that", "was") for b in ("his", "they", "we"))]
        (self.work / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        keys = ("--choices", self.work / "questions.jsonl")
        one = self.evaluate(1, *keys)
        for ranks, *layout in ((3,), (2, "parallel.tp=2"), (2, "parallel.pp=2")):
            self.assertEqual(one, self.evaluate(ranks, *keys, *layout))
        self.run_sestina("checkpoint", "export", self.work / "run", "-o", self.work / "hf")
        folder = ("--hf", self.work / "hf")
        one = self.evaluate(1, model=folder)
        self.assertEqual(one, self.evaluate(3, model=folder))
        self.assertAlmostEqual(one["loss"], self.evaluate(2, "parallel.tp=2", model=folder)["loss"], delta=1e-5 * one["loss"])

    def generate(self, ranks, *words, expected=DONE):
        words = ("generate", "-r", self.work / "run", "--prompt", "the of ", *words)
        return self.finish(self.start_ranks(ranks, *words) if ranks > 1 else self.start(*words), expected)[1]

    def test_13_text_of_tensor_parallel_ranks(self):
        """The tokens of one process, printed once: the first rank draws, and ends texts."""
        self.train("run", "run.steps=40", "schedule.lr=1e-2", "model.vocab_size=257", "data.tokenizer=bytes")

        def sequences(ranks, *words):
            lines = [line for line in self.generate(ranks, *words, "--json").splitlines() if line.startswith("{")]
            self.assertEqual(len(lines), 1, lines)
            return json.loads(lines[0])["sequences"]

        greedy = ("--tokens", 30, "--temperature", 0)
        one = sequences(1, *greedy)
        self.assertEqual(one, sequences(2, *greedy))
        self.assertEqual(one, sequences(2, *greedy, "run.deterministic=false", "parallel.tp=2"))
        for words in ((*greedy, "--stop", one[0]["text"][12:15]), ("--tokens", 100, "--seed", 2),
                      ("--prompt", "some ", "--samples", 3, "--tokens", 10, "--top-p", 0.9, "--repetition-penalty", 1.1)):
            self.assertEqual(sequences(1, *words), sequences(2, *words))
        # The launcher passes the text on in pieces, and the line with the rate, which is on another stream, between them.
        text, rates = re.subn(r"prompt: \d+ tokens in [^\n]* tokens/s\n", "", self.generate(2, *greedy))
        self.assertEqual((text.count(one[0]["text"]), rates), (1, 1), text)

    def test_13_text_of_ranks_that_do_not_fit(self):
        self.train("run", "run.steps=2")
        for ranks, words, code, said in (
                (4, (), BAD_DECK, "does not divide model.num_attention_heads = 2"),
                (2, ("parallel.tp=1",), BAD_DECK, "allowed: 2, or mpirun -n 1"),
                (2, ("parallel.pp=2",), BAD_DECK, "allowed: 1, with all ranks tensor parallel"),
                (2, ("--prompt", "x" * 65), BAD_DATA, "64 positions"),
                (2, ("--prompt-file", "nowhere"), INPUT_MISSING, "nowhere")):
            output = self.generate(ranks, *words, expected=code)
            self.assert_one_message(output)
            self.assertIn(said, output)

    def test_25_tasks_that_do_not_find_each_other(self):
        output = self.train("run", "run.steps=2", environment={"OMPI_COMM_WORLD_SIZE": "4"}, expected=UNAVAILABLE)
        self.assertIn("OMPI_COMM_WORLD_SIZE", output)

    def test_25_verbs_of_one_process(self):
        self.train("run", "run.steps=2")
        output = self.finish(self.start_ranks(2, "checkpoint", "export", self.work / "run", "-o", self.work / "hf"), UNAVAILABLE)[1]
        self.assertIn("checkpoint export runs as one process", output)

    def test_25_diagnose_tells_a_bad_deck_once(self):
        self.train("run", "run.steps=2")
        first = ("diagnose", "hessian", "-r", self.work / "run", "--vectors", "2")
        output = self.finish(self.start_ranks(2, *first, "metrics.eval_batch=1"), BAD_DECK)[1]
        self.assert_one_message(output)
        self.assertIn("did you mean", output)

    def test_25_two_jobs_in_one_directory(self):
        child = self.run_and_signal("run", HUP, 0, 2, "run.steps=1000000")
        output = self.train_ranks(2, "run", *MICRO, "-r", "auto", "run.steps=1000000", expected=73)
        self.assert_one_message(output)
        for number in self.rank_processes(child, 2).values():
            os.kill(number, TERM)
        self.finish(child, STOPPED_SAVED)

    def test_40_a_file_that_shrinks_on_one_rank(self):
        """The file of the second rank is its own: all ranks save, and end with 66."""
        for name in ("a.txt", "b.txt"):
            (self.work / name).write_bytes((self.work / "text.txt").read_bytes())
        (self.work / "here").mkdir()
        (self.work / "there").mkdir()
        for folder, name in (("here", "a.txt"), ("there", "b.txt")):
            (self.work / folder / "deck.toml").write_text(self.deck.read_text().replace("text.txt", "data.txt"))
            (self.work / folder / "data.txt").symlink_to(f"../{name}")
        keys = ("-d", self.work / "run", *MICRO, "metrics.every=1", "run.steps=1000000")
        child = self.start_unlike(("train", "-i", "deck.toml", *keys), ("train", "-i", "deck.toml", *keys),
                                  folders=(self.work / "here", self.work / "there"))
        self.wait_for(lambda: self.steps_done("run") >= 10, child, 60)
        os.truncate(self.work / "b.txt", 0)
        output = self.finish(child, INPUT_MISSING, 120)[1]
        self.assertRegex(output, r"sestina: error: rank 1: \S*/data.txt: ends .* which is saved")
        self.assert_one_message(output)
        step = self.saved_steps("run")[-1]
        self.assertGreaterEqual(step, 10)
        (self.work / "b.txt").write_bytes((self.work / "text.txt").read_bytes())
        self.train_ranks(2, "run", *MICRO, "metrics.every=1", "-r", "auto", f"run.steps={step + 3}")
        self.train_ranks(2, "whole", *MICRO, "metrics.every=1", f"run.steps={step + 3}")
        self.assert_same_run("run", "whole", step + 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
