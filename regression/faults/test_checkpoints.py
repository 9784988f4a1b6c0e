"""Faults 6 and 9 to 12: full disks, and checkpoints that are damaged in every way we can think of."""

import json
import os
import resource
import shutil
import subprocess
import unittest

from sestina import BAD_DATA, CANNOT_CREATE, Case, DONE, INPUT_MISSING, IO_ERROR, STOPPED_SAVED, TERM, flip_bit

LIMIT = 1 << 20  # bytes per file: room for metrics and log, none for a shard of WIDE
WIDE = ("model.hidden_size=64", "model.intermediate_size=256")


class Damage(Case):
    """Two checkpoints, of update 20 and 40; the tests damage the newer."""

    def setUp(self):
        super().setUp()
        self.train("run", "checkpoint.every=20")
        self.old, self.new = self.folder("run", 20), self.folder("run", 40)
        self.shard = self.new / "shard_00000.h5"

    def assert_refused(self, *named):
        """Every way in ends with 65 and names what is wrong; -r auto takes the older one and says so."""
        for arguments in (("checkpoint", "verify", self.new), self.train_arguments("run", "-r", self.new)):
            output = self.run_sestina(*arguments, expected=BAD_DATA)
            for part in named:
                self.assertIn(str(part), output)
        output = self.train("run", "-r", "auto", "run.steps=41")
        for part in named:
            self.assertIn(str(part), output)
        self.assertEqual(self.lines("run", "rewind")[-1]["step"], 20)
        self.assertEqual(self.steps_done("run"), 41)

    def test_09_flipped_bit_in_a_tensor(self):
        tensor = self.manifest(self.new)["tensors"][3]
        piece = tensor["pieces"][0]
        flip_bit(self.shard, piece["offset"] + piece["bytes"] // 2)
        self.assert_refused("shard_00000.h5", "digest", tensor["path"], f"[{piece['offset']}, {piece['offset'] + piece['bytes']})")

    def test_09_flipped_bit_in_the_structure(self):
        flip_bit(self.shard, 48)
        self.assert_refused("shard_00000.h5", "digest")

    def test_09_flipped_bit_in_the_whole_view(self):
        flip_bit(self.new / "global.h5", 1000)
        self.assert_refused("global.h5", "digest")

    def test_10_cut(self):
        os.truncate(self.shard, self.shard.stat().st_size - 4096)
        self.assert_refused("shard_00000.h5", "bytes")

    def test_10_missing(self):
        self.shard.unlink()
        self.assert_refused("shard_00000.h5", "missing")

    def test_10_extra(self):
        shutil.copy(self.shard, self.new / "shard_00001.h5")
        self.assert_refused("shard_00001.h5", "not listed")

    def test_10_of_another_step(self):
        shutil.copy(self.old / "shard_00000.h5", self.shard)
        self.assert_refused("shard_00000.h5", "digest")

    def test_10_two_swapped(self):
        self.shard.rename(self.new / "x")
        (self.new / "global.h5").rename(self.shard)
        (self.new / "x").rename(self.new / "global.h5")
        self.assert_refused(".h5", "the manifest says")

    def test_11_manifests(self):
        path = self.new / "manifest.json"
        good = path.read_text()
        edits = {"empty": "", "cut": good[:len(good) // 2], "version": good.replace('"version": 1', '"version": 2', 1),
                 "negative": good.replace('"size": ', '"size": -', 1), "huge": good.replace('"size": ', '"size": 99999999999999', 1),
                 "no JSON": "{" + good, "deep": "[" * 100000, "another": json.dumps({"schema": "other"})}
        for name, text in edits.items():
            with self.subTest(name):
                path.write_text(text)
                for arguments in (("checkpoint", "verify", self.new), self.train_arguments("run", "-r", self.new)):
                    self.assertIn("manifest.json", self.run_sestina(*arguments, expected=BAD_DATA))
        path.write_text(good)
        self.run_sestina("checkpoint", "verify", self.new, "--full")
        path.unlink()
        self.assert_refused("manifest.json")

    def test_12_latest_points_to_nothing(self):
        link = self.work / "run/checkpoints/latest"
        self.assertEqual(os.readlink(link), "step_00000040")
        link.unlink()
        link.symlink_to("step_00000099")
        self.train("run", "-r", link, expected=BAD_DATA)
        output = self.train("run", "-r", "auto", "run.steps=41")
        self.assertIn("step_00000099", output)
        self.assertEqual(os.readlink(link), "step_00000041")

    def test_12_latest_points_to_an_incomplete_one(self):
        (self.new / "manifest.json").unlink()
        self.train("run", "-r", self.work / "run/checkpoints/latest", expected=BAD_DATA)
        self.assert_refused("manifest.json")

    def test_12_all_damaged(self):
        """Never a silent fresh start over checkpoints that cannot be read."""
        for folder in (self.old, self.new):
            (folder / "manifest.json").unlink()
        for word in ("auto", "latest"):
            self.train("run", "-r", word, expected=BAD_DATA)

    def test_12_none_at_all(self):
        self.train("other", "-r", "latest", expected=INPUT_MISSING)
        self.train("other", "-r", "auto", "run.steps=1", expected=DONE)
        self.run_sestina("checkpoint", "verify", self.work / "nowhere", expected=INPUT_MISSING)


class FullDisk(Case):
    def test_06_two_failures_in_a_row(self):
        self.train("run", *WIDE, "run.steps=10")
        before = self.tensors(self.folder("run", 10))
        output = self.train("run", *WIDE, "-r", "auto", "run.steps=100", "checkpoint.every=20", limit=LIMIT, expected=IO_ERROR)
        self.assertIn("File too large", output)
        self.assert_nothing_left("run")
        failed = [line for line in self.lines("run", "checkpoint") if line.get("error")]
        self.assertGreaterEqual(len(failed), 2)
        self.assertEqual(self.saved_steps("run"), [10])
        self.assertEqual(self.tensors(self.folder("run", 10)), before)
        self.run_sestina("checkpoint", "verify", self.work / "run", "--full")
        self.train("run", *WIDE, "-r", "auto", "run.steps=20")  # room again

    def test_06_training_goes_on_after_one(self):
        keys = (*WIDE, "run.steps=1000000", "checkpoint.every=100")
        child = self.start(*self.train_arguments("run", *keys), limit=LIMIT)
        self.wait_for(lambda: any(line.get("error") for line in self.lines("run", "checkpoint")), child)
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.wait_for(lambda: self.saved_steps("run"), child)
        child.send_signal(TERM)
        self.finish(child, STOPPED_SAVED)
        self.assert_nothing_left("run")
        self.run_sestina("checkpoint", "verify", self.work / "run", "--full")

    def test_06_a_disk_that_is_really_full(self):
        """A small tmpfs in a mount namespace of its own, where the system allows that."""
        script = ('mount -t tmpfs -o size=3m none full && "$0" train -i deck.toml -d full "$@"; echo code $?; '
                  'ls full/checkpoints; "$0" checkpoint verify full --full; echo verified $?')
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, self.sestina, *WIDE, "run.steps=200",
                   "checkpoint.every=20", "checkpoint.keep=0"]
        (self.work / "full").mkdir()
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, timeout=60,
                              env=os.environ | {"SESTINA_RETRY_SECONDS": "0.3"})
        if "code" not in done.stdout:
            self.skipTest(f"no mount namespace: {done.stderr.strip()}")
        self.assertIn("No space left", done.stdout + done.stderr)
        self.assertIn("retrying", done.stdout + done.stderr)
        self.assertIn(f"code {IO_ERROR}", done.stdout)
        self.assertIn("verified 0", done.stdout)
        self.assertNotIn(".tmp-", done.stdout.split("code")[1])

    def test_06_room_comes_back(self):
        """A disk that is full for a moment: the save waits, says so once, and is written."""
        script = ('mount -t tmpfs -o size=3m none full && head -c 2500000 /dev/zero >full/filler && { (sleep 2; rm full/filler) & '
                  '"$0" train -i deck.toml -d full "$@"; echo code $?; "$0" checkpoint verify full --full; echo verified $?; }')
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, self.sestina, *WIDE, "run.steps=2"]
        (self.work / "full").mkdir()
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, timeout=60)
        if "code" not in done.stdout:
            self.skipTest(f"no mount namespace: {done.stderr.strip()}")
        self.assertIn("code 0", done.stdout)
        self.assertIn("verified 0", done.stdout)
        self.assertIn("No space left on device; retrying", done.stdout + done.stderr)
        self.assertEqual((done.stdout + done.stderr).count("shard_00000.h5: No space left"), 1)

    def test_06_a_quota_that_is_reached_at_latest(self):
        """A tmpfs with room for all files of a checkpoint, but not for the link: it is complete, and -r auto goes on from it."""
        script = ('for files in 9 10 11 12 13 14; do mount -t tmpfs -o nr_inodes=$files none full || exit 1; '
                  '"$0" train -i deck.toml -d full run.steps=2; echo "code $?"; ls -A full/checkpoints; "$0" checkpoint verify full; '
                  'rm -f full/log.txt; "$0" train -i deck.toml -d full run.steps=3 checkpoint.keep=1 -r auto; echo "again $?"; umount full; '
                  'echo ======; done')
        (self.work / "full").mkdir()
        done = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, self.sestina], cwd=self.work,
                              capture_output=True, text=True, timeout=60, env=os.environ | {"SESTINA_RETRY_SECONDS": "0.1"})
        if "code" not in done.stdout:
            self.skipTest(f"no mount namespace: {done.stderr.strip()}")
        tries = [text for text in done.stdout.split("======") if "latest does not point to it" in text.split("code")[0]]
        self.assertEqual(len(tries), 1, done.stdout + done.stderr)
        first, then = tries[0].split("code")
        self.assertIn("step_00000002 is complete, but", first)
        self.assertTrue(then.startswith(f" {DONE}"), tries[0])
        self.assertNotIn("NOT saved", first)
        self.assertIn("resumed from full/checkpoints/step_00000002 at step 2", then)

    def test_06_staging_disk_gone(self):
        (self.work / "fast").write_text("not a folder")
        self.train("run", "run.steps=3", f"checkpoint.staging_dir={self.work}/fast", expected=IO_ERROR)
        (self.work / "fast").unlink()
        self.train("run2", "run.steps=3", f"checkpoint.staging_dir={self.work}/fast")
        self.assertEqual(list((self.work / "fast").iterdir()), [])


class Staged(Case):
    """checkpoint.staging_dir: a pipe in the place of a shard in the run directory holds the copy up, with the stage whole."""

    def setUp(self):
        super().setUp()
        self.keys = ("checkpoint.every=200", "checkpoint.keep=0", "metrics.every=1", f"checkpoint.staging_dir={self.work}/fast")

    def kill_between(self, run, *more):
        child = self.start(*self.train_arguments(run, *self.keys, *more), "run.steps=1000000")
        checkpoints = self.work / run / "checkpoints"
        place = checkpoints / f"step_00000200.1.tmp-{child.pid}"
        self.wait_for(lambda: self.steps_done(run) >= 1, child)  # what others left has been removed
        place.mkdir(parents=True)
        os.mkfifo(place / "shard_00000.h5")
        self.wait_for(lambda: (checkpoints / f"step_00000200.1.staged.tmp-{child.pid}/rank_00000.json").exists(), child)
        self.wait_for(lambda: self.steps_done(run) >= 250, child)  # training goes on
        self.assertTrue((place / "shard_00000.h5").is_fifo())
        self.assertFalse((checkpoints / "latest").is_symlink(), "moved before the checkpoint was there")
        child.kill()
        self.finish(child)
        self.assertEqual(self.saved_steps(run), [])

    def test_01_killed_between_stage_and_run_directory(self):
        for writes in ("true", "false"):
            with self.subTest(writes):
                self.train("whole" + writes, "run.steps=220")
                run = "killed" + writes
                self.kill_between(run, f"checkpoint.async={writes}")
                output = self.train(run, "-r", "auto", *self.keys, "run.steps=220")
                self.assertIn("step_00000200: was on a staging disk when its run was killed; completed now", output)
                self.assertEqual(self.lines(run, "rewind")[-1]["step"], 200)
                self.assertEqual(self.saved_steps(run), [200, 220])
                self.run_sestina("checkpoint", "verify", self.folder(run, 200), "--full")
                self.assertEqual(self.tensors(self.folder(run, 220)), self.tensors(self.folder("whole" + writes, 220)))
                self.assert_nothing_left(run)
                self.assertEqual(list((self.work / "fast").iterdir()), [])

    def test_01_what_a_checkpoint_carries_is_completed_too(self):
        """The files of a Hugging Face folder, which goes while the checkpoint is on its staging disk."""
        self.train("base", "run.steps=1")
        self.run_sestina("checkpoint", "export", self.work / "base", "-o", self.work / "hf")
        shutil.rmtree(self.work / "base")
        deck = self.deck.read_text()
        self.deck.write_text(deck[:deck.index("[model]")] + '[model]\nfrom_hf = "hf"\n' + deck[deck.index("[data]"):])
        self.kill_between("run")
        config = (self.work / "hf" / "config.json").read_text()
        shutil.rmtree(self.work / "hf")
        self.train("run", "-r", "auto", *self.keys, "run.steps=220")
        for step in (200, 220):
            self.assertEqual((self.folder("run", step) / "hf" / "config.json").read_text(), config)
            self.run_sestina("checkpoint", "verify", self.folder("run", step), "--full")

    def test_01_a_fresh_start_does_not_bury_it(self):
        self.kill_between("run")
        output = self.train("run", *self.keys, expected=CANNOT_CREATE)
        self.assertIn("already contains checkpoints", output)
        self.assert_one_message(output)
        self.assertEqual(self.saved_steps("run"), [200])

    def test_06_stage_gone_after_the_kill(self):
        self.kill_between("run")
        shutil.rmtree(self.work / "fast")
        output = self.train("run", "-r", "auto", *self.keys, "run.steps=220")
        self.assertRegex(output, r"step 200 was saved on staging disks alone .* and is given up: \S*fast/\S*shard_00000.h5 on \S+ is not there")
        self.assertEqual(self.saved_steps("run"), [200, 220])
        self.assert_nothing_left("run")

    def test_09_stage_damaged_after_the_kill(self):
        """One flipped bit of the staged shard, on whatever node it lies: it is given up by name, and never copied as good."""
        self.kill_between("run")
        shard = next((self.work / "fast").rglob("shard_00000.h5"))
        flip_bit(shard, shard.stat().st_size // 2)
        output = self.train("run", "-r", "auto", *self.keys, "run.steps=220")
        self.assertRegex(output, r"step 200 was saved on staging disks alone .* and is given up: \S*fast/\S*shard_00000.h5 on \S+ is not there or damaged")
        self.assertEqual(self.lines("run", "rewind"), [])  # from the beginning
        self.assertEqual(self.saved_steps("run"), [200, 220])
        self.train("whole", "run.steps=220")
        self.assertEqual(self.tensors(self.folder("run", 220)), self.tensors(self.folder("whole", 220)))

    def test_06_no_room_behind_the_stage(self):
        """The run directory is a small tmpfs in a mount namespace of its own, where the system allows that."""
        script = ('mount -t tmpfs -o size=3m none full && "$0" train -i deck.toml -d full "$@"; echo code $?; '
                  'ls full/checkpoints fast; "$0" checkpoint verify full --full; echo verified $?')
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, self.sestina, *WIDE, "run.steps=200",
                   *self.keys, "checkpoint.every=20"]
        (self.work / "full").mkdir()
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, timeout=60,
                              env=os.environ | {"SESTINA_RETRY_SECONDS": "0.3"})
        if "code" not in done.stdout:
            self.skipTest(f"no mount namespace: {done.stderr.strip()}")
        self.assertRegex(done.stdout + done.stderr, r"NOT saved: full/checkpoints/\S+: .*No space left")
        self.assertRegex(done.stdout + done.stderr, r"full/checkpoints/\S+: No space left on device; retrying")
        self.assertIn(f"code {IO_ERROR}", done.stdout)
        self.assertIn("verified 0", done.stdout)
        self.assertNotIn(".tmp-", done.stdout.split("code")[1])
        self.assertEqual(list((self.work / "fast").iterdir()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
