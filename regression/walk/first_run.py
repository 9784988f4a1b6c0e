#!/usr/bin/env python3
"""`./setup.sh run` after its build: cmake/first_run.sh with its own deck and command lines in a folder of its own, but a
short text, a smaller model and few steps. Two runs of one model, the report of both, the text of the better one; what was
stopped goes on; another text is prepared again."""
import os
import pathlib
import subprocess
import tempfile
import unittest

from user import DATA, PROGRAM, lines

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# What setup.sh has where it sources the file.
DRIVER = r"""
set -euo pipefail
root=$1 build=$1/build cache=$1/cache
say() { echo "== $*"; }
fail() { local code=$1; shift; echo "setup.sh: $*" >&2; exit "$code"; }
source "$2/cmake/first_run.sh"
"${@:3}"
"""

# The program as those lines call it: notes them, and makes training short. The file `stop` ends the next training after as
# many steps as it says, as a signal would.
STAND_IN = r"""#!/usr/bin/env bash
here=$(dirname "$0")
printf '%s\n' "$*" >>"$here/calls"
short=()
if [ "$1" = train ]; then
  short=(run.steps=6 schedule.steps=6 schedule.warmup_steps=2 metrics.eval_every=3 metrics.every=2 metrics.eval_batches=2 train.global_batch=2
    data.sequence_length=32 model.num_hidden_layers=1 model.hidden_size=64
    model.intermediate_size=96 model.num_attention_heads=2 checkpoint.every=4 --progress never)
  if [ -f "$here/stop" ]; then
    "SESTINA" "$@" "${short[@]}" "run.steps=$(cat "$here/stop")"
    rm "$here/stop"
    exit 75
  fi
elif [ "$1" = bench ]; then
  echo "{\"precision\":\"fp32\",\"step_s\":$(cat "$here/step_s"),\"steps\":5}"
  exit
elif [ "$1" = generate ]; then
  set -- "${@/#120/8}"
elif [ "$1 $2" = "data train-tokenizer" ]; then
  set -- "${@/#4096/600}"
fi
exec "SESTINA" "$@" "${short[@]}"
""".replace("SESTINA", PROGRAM)


class FirstRun(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.work = pathlib.Path(holder.name).resolve()
        (self.work / "inputs").symlink_to(ROOT / "inputs")
        self.bin = self.work / "build/bin"
        self.bin.mkdir(parents=True)
        (self.bin / "sestina").write_text(STAND_IN)
        (self.bin / "sestina").chmod(0o755)
        (self.bin / "step_s").write_text("0.5")  # what a measured step takes
        self.runs = self.work / "runs/first_run"

    def first_run(self, code=0, text=DATA):
        (self.bin / "calls").write_text("")
        done = subprocess.run(["bash", "-c", DRIVER, "-", self.work, ROOT, "first_run"], text=True, timeout=240, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, env={**os.environ, "SESTINA_TEXT": str(text)})
        self.assertEqual(done.returncode, code, done.stdout)
        return done.stdout

    def calls(self):
        return (self.bin / "calls").read_text().splitlines()

    def last_validation(self, kind):
        return lines(self.runs / kind, "val")[-1]["loss"]

    def test_two_optimizers_one_report_and_the_text_of_the_better_one(self):
        out = self.first_run()
        verbs = [" ".join(call.split()[:2]) if call.startswith("data") else call.split()[0] for call in self.calls()]
        self.assertEqual(verbs, ["data train-tokenizer", "data tokenize", "info", *2 * ["bench", "train"], "report", "generate"])
        training = [call for call in self.calls() if call.startswith("train")]
        for kind, call in zip(("adamw", "muon"), training):
            self.assertIn(f"-i {self.work}/inputs/first_run.toml -d {self.runs}/{kind} -r auto", call)
            deck = (self.runs / kind / "deck.resolved.toml").read_text()
            self.assertIn(f'kind = "{kind}"', deck)
            self.assertEqual(lines(self.runs / kind, "train")[-1]["step"], 6)
            self.assertIn(f"validation loss with {kind}: {self.last_validation(kind):.4f}\n", out)
            self.assertTrue(call.index("run.steps=340 ") < call.index("schedule.warmup_steps=22 ") < call.index("metrics.eval_every=56 "), call)
        # Each at a rate of its own, on the same data.
        self.assertNotIn("schedule.lr", training[0])
        self.assertIn("schedule.lr=", training[1])
        page = (self.runs / "report.html").read_text()
        self.assertEqual(page.count("<tr data-run="), 2)
        better = min(("adamw", "muon"), key=self.last_validation)
        self.assertIn(f"the better one is {better};", out)
        self.assertIn(f"generate -r {self.runs}/{better} ", self.calls()[-1])
        self.assertIn("\nThe kernel", out)

        (self.bin / "step_s").write_text("0.001")
        again = self.first_run()  # nothing is prepared, measured or trained twice
        self.assertEqual([call.split()[0] for call in self.calls()], ["info", "train", "train", "report", "generate"])
        self.assertEqual([lines(self.runs / kind, "train")[-1]["step"] for kind in ("adamw", "muon")], [6, 6])
        self.assertIn(f"the better one is {better};", again)

    def test_what_was_stopped_goes_on(self):
        (self.bin / "stop").write_text("4")
        out = self.first_run(code=75)
        self.assertIn("stopped early: ./setup.sh run resumes from here", out)
        self.assertFalse((self.runs / "muon").exists())
        self.first_run()
        for kind in ("adamw", "muon"):
            self.assertEqual([line["step"] for line in lines(self.runs / kind, "train")], list(range(1, 7)))

    def test_steps_fit_into_three_minutes_but_are_a_hundred(self):
        for seconds, steps in (("0.1", 1700), ("2.5e-2", 6800), ("20", 100), ("nothing", 170)):
            (self.bin / "step_s").write_text(seconds)
            found = subprocess.check_output(["bash", "-c", DRIVER.replace('"${@:3}"', 'sestina=$build/bin/sestina; "${@:3}"'), "-", self.work, ROOT,
                                             "fitting_steps", "optimizer.kind=muon"], text=True)
            self.assertEqual(int(found), steps, seconds)
        self.assertEqual(self.calls()[-1].split()[-1], "optimizer.kind=muon")

    def test_a_run_keeps_the_steps_it_was_begun_with(self):
        self.first_run()
        (self.bin / "step_s").write_text("0.001")
        self.first_run()
        steps = [word for call in self.calls() if call.startswith("train") for word in call.split() if word.startswith("run.steps=")]
        self.assertEqual(steps, ["run.steps=6"] * 2)  # the stand-in's own number, which the runs' decks hold

    def test_another_text_is_prepared_anew(self):
        self.first_run()
        vocabulary = (self.work / "build/first_run/tokenizer.json").read_text()
        other = self.work / "other.txt"
        other.write_text("".join(f"The kernel counts {n}, and then {n * n}.\n" for n in range(4000)))
        subprocess.run(["rm", "-r", self.runs], check=True)
        self.first_run(text=other)
        self.assertIn(f"data train-tokenizer {other}", self.calls()[0])
        self.assertNotEqual((self.work / "build/first_run/tokenizer.json").read_text(), vocabulary)
        self.assertIn("no such file or folder", self.first_run(code=66, text=self.work / "nowhere"))

    def test_the_better_one_has_the_lower_last_loss(self):
        for name, losses in {"a": (1.0, 9.5), "b": (12.0, 9.25), "c": (2.0, 10.125)}.items():
            (self.runs / name).mkdir(parents=True)
            (self.runs / name / "metrics.jsonl").write_text(
                "".join(f'{{"kind":"val","step":{i},"loss":{loss},"tokens":9}}\n' for i, loss in enumerate(losses)))
        folders = [str(self.runs / name) for name in "acb"]
        found = subprocess.check_output(["bash", "-c", DRIVER, "-", self.work, ROOT, "better_run", *folders], text=True).strip()
        self.assertEqual(found, folders[2])


if __name__ == "__main__":
    unittest.main()
