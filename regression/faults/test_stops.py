"""Faults 1 to 5: kills, signals and the wall time, at every moment of a run."""

import pathlib
import random
import re
import shutil
import statistics
import time
import unittest

from sestina import (Case, DONE, HUP, INT, INTERRUPTED, KILL, STOPPED_SAVED, STOPPED_UNSAVED, TERM, rounds)

STEPS = 400


class Stops(Case):
    def test_00_resume_is_bitwise(self):
        """Train A + B equals train A, resume, B."""
        self.train("whole", f"run.steps={STEPS}")
        self.train("parts", f"run.steps={STEPS // 3}")
        output = self.train("parts", "-r", "auto", f"run.steps={STEPS}")
        self.assertIn("resumed", output)
        self.assert_same_run("whole", "parts", STEPS)
        # At its end already: nothing to do, exit 0.
        self.train("parts", "-r", "latest", f"run.steps={STEPS}")
        self.assert_same_run("whole", "parts", STEPS)

    def test_01_killed_while_saving(self):
        """SIGKILL at random moments of a run that saves all the time; it must still end like one that was never killed."""
        choose, kills, halves = random.Random(), rounds(10), 0
        steps = 40 * kills
        keys = (f"run.steps={steps}", "checkpoint.every=7", "checkpoint.keep=2")
        self.train("whole", *keys)
        one_save = statistics.median(line["seconds"] for line in self.lines("whole", "checkpoint"))
        reached = 0
        for _ in range(kills):
            child = self.start(*self.train_arguments("killed", "-r", "auto", *keys))
            while child.poll() is None and not any((self.work / "killed").glob(f"checkpoints/step_*.tmp-{child.pid}")):
                time.sleep(0.001)
            time.sleep(choose.uniform(0, 4 * one_save))
            child.send_signal(KILL)
            code, output = self.finish(child)
            if reached:
                self.assertRegex(output, rf"resumed[^\n]*\b{reached}\b")  # from the newest complete one, and says so
            if code == DONE:
                break
            self.assertEqual(code, -KILL)
            reached = max(self.saved_steps("killed"), default=0)
            halves += len(list((self.work / "killed/checkpoints").glob("*.tmp-*")))
            listed = self.run_sestina("checkpoint", "list", self.work / "killed")
            self.assertNotIn(".tmp-", listed)
        self.assertGreater(reached, 0)
        self.train("killed", "-r", "auto", *keys)
        self.run_sestina("checkpoint", "verify", self.work / "killed", "--full")
        self.assert_nothing_left("killed")
        self.assert_same_run("whole", "killed", steps)
        print(f"{halves} of {kills} kills left a save half done, update {reached} of {steps} reached", end=" ... ")

    def test_02_many_signals_in_training(self):
        """Handlers disturb no computation: the main thread alone takes signals, and not on the stack of compiled products."""
        keys = ("model.hidden_size=64", "model.intermediate_size=256", "run.threads=3", "checkpoint.keep=2")
        child = self.start(*self.train_arguments("run", "run.steps=1000000", *keys))
        self.wait_for(lambda: self.steps_done("run") > 10, child)
        takers = [task for task in pathlib.Path(f"/proc/{child.pid}/task").iterdir() if self.takes(task, TERM)]
        self.assertEqual([task.name for task in takers], [str(child.pid)])
        for _ in range(300):
            time.sleep(0.002)
            child.send_signal(HUP)
        child.send_signal(TERM)
        self.finish(child, STOPPED_SAVED)
        self.run_sestina("checkpoint", "verify", self.work / "run", "--full")

    @staticmethod
    def takes(task, signal):
        blocked = re.search(r"^SigBlk:\s*([0-9a-f]+)", (task / "status").read_text(), re.MULTILINE)
        return not int(blocked[1], 16) >> (signal - 1) & 1

    def test_02_term_in_training(self):
        self.train("whole", f"run.steps={STEPS}")
        child = self.start(*self.train_arguments("stopped", f"run.steps={STEPS}"))
        self.wait_for(lambda: self.steps_done("stopped") > STEPS // 8, child)
        child.send_signal(TERM)
        _, output = self.finish(child, STOPPED_SAVED)
        self.assertIn("TERM", output)
        self.assertLess(self.steps_done("stopped"), STEPS)
        self.assertEqual(self.saved_steps("stopped"), [self.steps_done("stopped")])
        self.train("stopped", "-r", "auto", f"run.steps={STEPS}")
        self.assert_same_run("whole", "stopped", STEPS)

    def test_02_hup_saves_and_goes_on(self):
        child = self.start(*self.train_arguments("run", "run.steps=100000"))
        self.wait_for(lambda: self.steps_done("run") > 5, child)
        child.send_signal(HUP)
        self.wait_for(lambda: self.saved_steps("run"), child)
        at = self.steps_done("run")
        self.wait_for(lambda: self.steps_done("run") > at + 5, child)
        child.send_signal(INT)
        self.finish(child, STOPPED_SAVED)

    def test_03_term_in_start_up(self):
        for delay in (0, 0.01, 0.05):
            child = self.start(*self.train_arguments(f"run{delay}", "run.steps=1000000"))
            self.wait_for((self.work / f"run{delay}" / "metrics.jsonl").exists, child)
            time.sleep(delay)
            child.send_signal(TERM)
            code, output = self.finish(child, (STOPPED_SAVED, STOPPED_UNSAVED))
            saved = self.saved_steps(f"run{delay}")
            self.assertEqual(code, STOPPED_SAVED if saved else STOPPED_UNSAVED, output)

    def test_03_term_from_the_first_moment_on(self):
        """From where main begins no signal kills: 75 where a checkpoint is there to go on from, else 76."""
        self.train("old", "run.steps=3")
        for delay in (0, 0.001, 0.003, 0.01, 0.02, 0.04, 0.08):
            for run, resume, code in (("new", ("-r", "auto"), STOPPED_UNSAVED), ("old", ("-r", "auto"), STOPPED_SAVED),
                                      ("fork", ("-r", self.work / "old"), STOPPED_SAVED)):
                with self.subTest(f"{run} {delay}"):
                    child = self.start(*self.train_arguments(run, *resume, "run.steps=1000000"))
                    self.wait_for(lambda: self.catches(child.pid, TERM), child)
                    time.sleep(delay)
                    child.send_signal(TERM)
                    output = self.finish(child, (code, STOPPED_SAVED))[1]
                    if child.returncode == STOPPED_SAVED:
                        self.assertTrue(self.saved_steps("old" if run == "fork" else run), output)
                    self.assertIn("signal TERM", output)
                    shutil.rmtree(self.work / "new", ignore_errors=True)
                    shutil.rmtree(self.work / "fork", ignore_errors=True)

    def test_03_dry_run_is_no_run(self):
        """Printing a deck needs no catching: TERM takes its usual effect, or comes too late."""
        child = self.start(*self.train_arguments("run", "-n"))
        time.sleep(0.01)
        child.send_signal(TERM)
        self.finish(child, (DONE, -TERM))

    def test_03_late_term_changes_no_exit_code(self):
        for delay in (0, 0.005, 0.02):
            child = self.start(*self.train_arguments(f"run{delay}", "run.steps=20"))
            self.wait_for(lambda: child.poll() is not None or self.saved_steps(f"run{delay}"), child)
            time.sleep(delay)
            child.send_signal(TERM)
            self.finish(child, (DONE, STOPPED_SAVED))

    def test_03_term_in_evaluation(self):
        evaluate = ("run.steps=1000000", "metrics.eval_every=1", "metrics.eval_batches=100000", "data.validation_fraction=0.5",
                    "train.micro_batch=1")
        child = self.start(*self.train_arguments("run", *evaluate))
        self.wait_for(lambda: self.steps_done("run") >= 1, child)
        child.send_signal(TERM)
        begin = time.monotonic()
        self.finish(child, STOPPED_SAVED)
        self.assertLess(time.monotonic() - begin, 20)

    def test_03_term_while_flushing(self):
        child = self.start(*self.train_arguments("run", "run.steps=1000000", "checkpoint.every=1", "checkpoint.keep=2"))
        self.wait_for(lambda: len(self.saved_steps("run")) >= 2, child)
        child.send_signal(TERM)
        self.finish(child, STOPPED_SAVED)
        self.assertEqual(max(self.saved_steps("run")), self.steps_done("run"))
        self.assert_nothing_left("run")

    def test_03_interrupt_while_tokenising(self):
        """Neither half a token file nor a temporary one is left of a `data tokenize` that was stopped."""
        words = [f"{'abcdefghijklmnopqrstuvwxyz'[i % 26]}{i * 7919 % 99991}" for i in range(100000)]
        text = "".join(" ".join(words[i::7]) + "\n" for i in range(7))
        (self.work / "sample.txt").write_text(text)
        (self.work / "corpus.txt").write_text(text * 80)
        self.run_sestina("data", "train-tokenizer", self.work / "sample.txt", "--vocab-size", 300, "-o", self.work / "tokenizer.json")
        (self.work / "out").mkdir()
        child = self.start("data", "tokenize", self.work / "corpus.txt", "--tokenizer", self.work / "tokenizer.json", "--threads", 1,
                           "-o", self.work / "out/tokens")
        self.wait_for(lambda: any((self.work / "out").iterdir()), child)
        child.send_signal(INT)
        _, output = self.finish(child, STOPPED_UNSAVED)
        self.assertIn("data tokenize: stopped by signal INT; nothing was written", output)
        self.assertEqual(list((self.work / "out").iterdir()), [])

    def test_04_second_term_while_saving(self):
        child = self.start(*self.train_arguments("run", "run.steps=1000000", "checkpoint.every=2"))
        self.wait_for(lambda: self.saved_steps("run"), child)
        child.send_signal(TERM)
        child.send_signal(TERM)
        self.finish(child, STOPPED_SAVED)
        self.run_sestina("checkpoint", "verify", self.work / "run", "--full")

    def test_04_second_interrupt_leaves_at_once(self):
        """The first is answered on the spot; the second comes while a micro-batch of a second or more is under way, and does not wait for it."""
        slow = ("run.steps=1000000", "model.hidden_size=256", "model.intermediate_size=1024", "model.num_hidden_layers=8",
                "train.global_batch=128", "train.micro_batch=128")
        child = self.start(*self.train_arguments("run", *slow))
        self.wait_for(lambda: self.steps_done("run") == 1, child, 60)
        child.send_signal(INT)
        while "press Ctrl-C again to exit at once" not in child.stdout.readline():
            self.assertIsNone(child.poll())
        child.send_signal(INT)
        begin = time.monotonic()
        self.finish(child, INTERRUPTED)
        self.assertLess(time.monotonic() - begin, 1)
        self.assertEqual((self.steps_done("run"), self.saved_steps("run")), (1, []))

    def test_05_wall_time(self):
        begin = time.monotonic()
        output = self.train("run", "-t", "00:00:02", "run.steps=10000000", expected=STOPPED_SAVED)
        took = time.monotonic() - begin
        self.assertIn("wall time", output)
        self.assertLess(took, 4)  # two seconds and some start-up on a busy machine
        self.assertEqual(self.saved_steps("run")[-1], self.steps_done("run"))

    def test_05_end_time_of_the_batch_job(self):
        end = {"SLURM_JOB_END_TIME": str(int(time.time()) + 3)}
        self.train("run", "run.steps=10000000", expected=STOPPED_SAVED, environment=end)


if __name__ == "__main__":
    unittest.main(verbosity=2)
