#!/usr/bin/env python3
"""What a GPU must show, by the program itself; a machine without one skips it (77). Standard library alone; `speed` takes
torch for its peer, and skips without.

  gpu.py --program build/cuda/bin/sestina check       each kernel against its plain loops, on the shapes of decks
  gpu.py --program ... losses                         decks trained there and on the host: the same curves
  gpu.py --program ... bits                           two runs, an interrupted one, and recorded passes: the same bits
  gpu.py --program ... memcheck|racecheck|initcheck   decks under NVIDIA's compute-sanitizer
  gpu.py --program ... speed                          134 M and 1 B next to torch.compile in one run, as ratios
  gpu.py --program build/bin/sestina --host losses    the same comparisons of the host with itself, which tries this file
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
import run_case  # noqa: E402
import training_runs as runs  # noqa: E402

SKIPPED = 77
# Of the families, and of what the optimizers are made of.
DECKS = ["tiny_llama", "tiny_gpt", "tiny_qwen3", "tiny_olmo2", "tiny_moe", "tiny_muon", "tiny_normuon", "tiny_soap", "tiny_shampoo",
         "tiny_kl_soap", "tiny_soap_muon", "tiny_poet_x", "tiny_adamw_8bit"]
UPDATES = 12
# Runs that have the same bits each time; micro-batches of a deterministic run go into a tree, which is not recorded.
REPEATED = ["run.deterministic=true", "train.micro_batch=0"]
# Of a loss, relative: sums in another order are as far apart as roundings of their type, which twelve updates at the
# rates of these decks make some hundred times as large.
FAR = {"fp32": 2e-3, "bf16": 3e-2}


class Failure(Exception):
    pass


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


class Runner:
    def __init__(self, program, host, work, decks=None):
        self.program, self.work, self.decks = program, work, decks
        self.space = "host" if host else "device"

    def call(self, *words, prefix=()):
        command = [*prefix, str(self.program), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"exit code {done.returncode}: {' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
        return done

    def train(self, name, deck, *options, space=None, steps=UPDATES, prefix=(), resume=False):
        """Trains a deck in a folder of this name, which it returns."""
        folder = self.work / name
        if not resume:
            shutil.rmtree(folder, ignore_errors=True)
        self.call("train", "-i", ROOT / f"inputs/{deck}.toml", "-d", folder, "-r", "auto", f"run.steps={steps}",
                  f"schedule.steps={UPDATES}", "schedule.warmup_steps=4", f"run.space={space or self.space}", "metrics.every=1", "metrics.eval_every=0",
                  "checkpoint.every=6", *options, prefix=prefix)
        return folder


def losses_of(folder):
    return [line["loss"] for line in runs.lines_of(folder, "train")]


def bits_of(folder):
    return losses_of(folder), run_case.tensor_digests(folder / "checkpoints" / "latest")


def check(runner):
    for deck in ("tiny_llama", "tiny_gpt", "tiny_moe", "tiny_qwen3", "tiny_poet_x", "tiny_graphs", "llama_134m"):
        for precision in ("fp32", "bf16"):
            done = runner.call("check", "-i", ROOT / f"inputs/{deck}.toml", "data.source=[]", f"train.precision={precision}")
            if "WRONG" in done.stdout or "this device computes nothing" in done.stdout:
                raise Failure(f"{deck} in {precision}:\n{done.stdout}")
            print(f"{deck}, {precision}:\n{done.stdout}")


def losses(runner):
    for deck in runner.decks or DECKS:
        for precision, far in FAR.items():
            options = [f"train.precision={precision}"]
            found = losses_of(runner.train("there", deck, *options))
            wanted = losses_of(runner.train("host", deck, *options, space="host"))
            worst = max((run_case.difference(a, b) for a, b in zip(found, wanted, strict=True)), default=1)
            print(f"{deck:16} {precision}: {len(found)} losses, {worst:.1e} apart at most, {far:.0e} allowed")
            if len(found) != UPDATES or not worst <= far:
                raise Failure(f"{deck} in {precision}: losses {found}, on the host {wanted}")


def bits(runner):
    for deck in runner.decks or ("tiny_llama", "tiny_muon", "tiny_soap", "tiny_graphs"):
        options = ["train.precision=bf16", *REPEATED]
        whole = bits_of(runner.train("whole", deck, *options))
        if bits_of(runner.train("again", deck, *options)) != whole:
            raise Failure(f"{deck}: two runs have different bits")
        runner.train("stopped", deck, *options, steps=UPDATES // 2)
        if bits_of(runner.train("stopped", deck, *options, resume=True)) != whole:
            raise Failure(f"{deck}: a run that was interrupted goes on to other bits")
        print(f"{deck}: the same bits of two runs, and of one that was interrupted")
    for kind in ("adamw", "muon", "soap"):
        recorded, plain = (bits_of(runner.train(f"graphs {on}", "tiny_graphs", f"train.graphs={on}", f"optimizer.kind={kind}", *REPEATED))
                           for on in ("true", "false"))
        if recorded != plain:
            raise Failure(f"recorded passes and updates by {kind} have other bits: losses {recorded[0]}, {plain[0]}")
    print("tiny_graphs: the bits of passes and updates that are recorded are those of others")


def sanitizer(runner, tool):
    found = shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")
    if not found:
        skip("compute-sanitizer is not here")
    for deck in ("tiny_llama", "tiny_gpt", "tiny_muon", "tiny_soap", "tiny_moe", "tiny_poet_x"):
        runner.train(f"under {tool}", deck, "run.check=off", "train.precision=bf16", "train.global_batch=2", "train.micro_batch=1",
                     "checkpoint.every=0", steps=2, prefix=[found, "--tool", tool, "--error-exitcode", "9"])
        print(f"{deck}: {tool} finds nothing in two updates")


# Sizes: options of our program, and words of the peer's.
SPEED = {
    "134 M, 32,768 tokens": (["-i", ROOT / "inputs/llama_134m.toml", "data.sequence_length=1024", "model.max_position_embeddings=1024",
                              "train.global_batch=32", "train.micro_batch=32"],
                             ["--hidden", "768", "--inner", "2048", "--layers", "12", "--heads", "12", "--vocabulary", "32000", "--batch", "32"]),
    "1 B, 16,384 tokens": (["-i", ROOT / "inputs/llama_134m.toml", "model.preset=llama-1b", "data.sequence_length=1024",
                            "model.max_position_embeddings=1024", "train.global_batch=16", "train.micro_batch=16"],
                           ["--hidden", "2048", "--inner", "5461", "--layers", "24", "--heads", "32", "--vocabulary", "32000", "--batch", "16"])}


def speed(runner):
    python = os.environ.get("SESTINA_TORCH", sys.executable)
    if subprocess.run([python, "-c", "import torch; assert torch.cuda.is_available()"], capture_output=True).returncode:
        skip("no torch with a GPU (SESTINA_TORCH names a Python that has it)")
    slower = []
    for size, (options, words) in SPEED.items():
        for kind in ("adamw", "muon"):
            own = json.loads(runner.call("bench", "step", *options, f"optimizer.kind={kind}", "train.precision=bf16", "data.source=[]",
                                         "data.tokenizer=", "--json").stdout)
            peer = subprocess.run([python, HERE / "torch_peer.py", *words, "--optimizer", kind], capture_output=True, text=True)
            if peer.returncode:
                raise Failure(f"torch_peer.py: {peer.stderr[-2000:]}")
            milliseconds = json.loads(peer.stdout)["step_ms"]
            ratio = 1e3 * own["step_s"] / milliseconds
            print(f"{size}, {kind}: {1e3 * own['step_s']:.1f} ms, torch.compile {milliseconds:.1f} ms: {ratio:.2f} of it")
            if ratio > 1:
                slower.append(f"{size}, {kind}: {ratio:.2f} of the time of torch.compile")
    if slower:
        raise Failure("\n".join(slower))


def main():
    cases = {"check": check, "losses": losses, "bits": bits, "speed": speed,
             **{tool: lambda runner, tool=tool: sanitizer(runner, tool) for tool in ("memcheck", "racecheck", "initcheck")}}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True)
    parser.add_argument("--host", action="store_true", help="the host in the place of a GPU")
    parser.add_argument("--decks", nargs="+", help="for `losses` and `bits`: these alone")
    parser.add_argument("case", choices=cases)
    args = parser.parse_args()
    if not args.host and subprocess.run("nvidia-smi --list-gpus", shell=True, capture_output=True).returncode:
        skip("no GPU here")
    with tempfile.TemporaryDirectory() as work:
        try:
            cases[args.case](Runner(args.program.resolve(), args.host, pathlib.Path(work), args.decks))
        except Failure as failure:
            sys.exit(f"gpu.py: {failure}")


if __name__ == "__main__":
    main()
