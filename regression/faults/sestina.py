"""What the fault tests share: a tiny deck and text, the program as a child process, and a look into its run directory.
Python 3.11, standard library alone. The program is named by SESTINA; SESTINA_FAULT_ROUNDS raises the number of kills.

  sestina.py test_stops.py [Stops.test_05_wall_time ...]    runs tests of a file; 77 when all of them were skipped
"""

import ctypes
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

DONE, USAGE, BAD_DATA, INPUT_MISSING, UNAVAILABLE, INTERNAL = 0, 64, 65, 66, 69, 70
CANNOT_CREATE, IO_ERROR, STOPPED_SAVED, STOPPED_UNSAVED, BAD_DECK, DIVERGED, CORRUPTED, INTERRUPTED = 73, 74, 75, 76, 78, 79, 80, 130

WORDS = ("the a of to and in is that it was for on are with as his they at be this from have or by one had not but what all "
         "were when we there can an your which their said if do will each about how up out them then she many some").split()


def text(bytes_wanted=60000, seed=7):
    """Sentences of common words: the same on every machine, and easy enough to learn."""
    choose, lines, size = random.Random(seed), [], 0
    while size < bytes_wanted:
        lines.append(" ".join(choose.choices(WORDS, k=9)) + ".")
        size += len(lines[-1]) + 1
    return "\n".join(lines) + "\n"


MPI_SURROUNDINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                    "OMPI_MCA_btl_vader_single_copy_mechanism": "none"}

MICRO = ("train.micro_batch=1",)  # four micro-batches: the ranks' parts are aligned, so no bit depends on their number

DECK = """[run]
seed = 3
threads = 1
deterministic = true
space = "host"
steps = 40
[model]
family = "llama"
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
vocab_size = 256
max_position_embeddings = 64
[data]
sequence_length = 32
[[data.source]]
format = "text"
path = "text.txt"
[train]
global_batch = 4
[schedule]
kind = "constant"
lr = 3e-3
warmup_steps = 5
steps = 1000000000
[metrics]
every = 10
"""


class Case(unittest.TestCase):
    """Each test gets an empty folder with deck.toml and text.txt."""

    def setUp(self):
        self.sestina = pathlib.Path(os.environ["SESTINA"]).resolve()
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="sestina-fault-"))
        self.deck = self.work / "deck.toml"
        self.deck.write_text(DECK)
        (self.work / "text.txt").write_text(text())
        self.children = []

    def tearDown(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.communicate()
        shutil.rmtree(self.work, ignore_errors=True)

    def start(self, *arguments, environment=None, limit=None, **options):
        """The program as a child; limit: file size in bytes (RLIMIT_FSIZE)."""
        surroundings = {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false", "OMP_WAIT_POLICY": "passive"} | dict(os.environ) | (environment or {})
        surroundings = {key: value for key, value in surroundings.items() if value is not None}
        before = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))) if limit else None
        child = subprocess.Popen([self.sestina, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 errors="replace", cwd=self.work, env=surroundings, preexec_fn=before, **options)
        self.children.append(child)
        return child

    def start_ranks(self, ranks, *arguments, **options):
        """The program as so many ranks under mpirun (oversubscribed where there are fewer cores); blocks: largest file that a
        rank may write, in KiB (then ranks talk by TCP: shared memory is a file too)."""
        program, self.sestina = self.sestina, os.environ["MPIEXEC"]
        blocks = options.pop("blocks", None)
        limits = ("--mca", "btl", "self,tcp", "bash", "-c", f'ulimit -f {blocks}; exec "$@"', "--") if blocks else ()
        try:
            return self.start("-n", ranks, *limits, program, *arguments, environment=MPI_SURROUNDINGS | options.pop("environment", {}), **options)
        finally:
            self.sestina = program

    def start_unlike(self, *ranks, folders=None, programs=None, **options):
        """One rank for each list of arguments, with a working directory or a program of its own where given."""
        program, self.sestina = self.sestina, os.environ["MPIEXEC"]
        words = []
        for i, arguments in enumerate(ranks):
            folder = ("-wdir", folders[i]) if folders else ()
            words += [":"] * (i > 0) + ["-n", 1, *folder, programs[i] if programs else program, *arguments]
        try:
            return self.start(*words, environment=MPI_SURROUNDINGS | options.pop("environment", {}), **options)
        finally:
            self.sestina = program

    def catches(self, process, number):
        """True once the process has a handler for this signal: it is in main."""
        try:
            status = pathlib.Path(f"/proc/{process}/status").read_text()
        except OSError:
            return False
        caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt")), 0)
        return caught >> (number - 1) & 1 == 1

    def rank_processes(self, child, ranks, seconds=30):
        """Process numbers of the ranks, by rank."""
        found = {}
        def look():
            for number in pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
                try:
                    words = pathlib.Path(f"/proc/{number}/environ").read_text().split("\0")
                except OSError:
                    continue
                for word in words:
                    if word.startswith("OMPI_COMM_WORLD_RANK="):
                        found[int(word.split("=")[1])] = int(number)
            return len(found) == ranks
        self.wait_for(look, child, seconds)
        return found

    def train_ranks(self, ranks, run, *more, expected=DONE, **options):
        return self.finish(self.start_ranks(ranks, *self.train_arguments(run, *more), **options), expected, 120)[1]

    def finish(self, child, expected=None, seconds=60):
        """Waits; returns (exit code, all output)."""
        output, _ = child.communicate(timeout=seconds)
        if expected is not None:
            codes = expected if isinstance(expected, (tuple, set)) else (expected,)
            self.assertIn(child.returncode, codes, f"{child.args}\n{output[-3000:]}")
        return child.returncode, output

    def run_sestina(self, *arguments, expected=DONE, **options):
        return self.finish(self.start(*arguments, **options), expected)[1]

    def train_arguments(self, run, *more):
        usual = {"-i": self.deck, "-d": self.work / run}
        return ("train", *(word for key, value in usual.items() if key not in more for word in (key, value)), *more)

    def train(self, run, *more, expected=DONE, **options):
        return self.run_sestina(*self.train_arguments(run, *more), expected=expected, **options)

    def wait_for(self, condition, child, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, "waited too long")
            if child.poll() is not None:
                self.fail(f"ended too early with {child.returncode}:\n{child.communicate()[0][-3000:]}")
            time.sleep(0.002)

    def lines(self, run, kind):
        """Lines of metrics.jsonl of one kind; a cut last line is left out."""
        path = self.work / run / "metrics.jsonl"
        found = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if entry["kind"] == kind:
                found.append(entry)
        return found

    def steps_done(self, run):
        """Of the last lines alone: tests look at runs that write thousands of them."""
        try:
            with open(self.work / run / "metrics.jsonl", "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 200000))
                end = file.read(200000).decode(errors="replace")
        except FileNotFoundError:
            return 0
        found = re.findall(r'^\{"kind":"train","step":(\d+),.*\}$', end, re.MULTILINE)
        return int(found[-1]) if found else 0

    def losses(self, run):
        return {line["step"]: line["loss"] for line in self.lines(run, "train")}

    def folder(self, run, step):
        return self.work / run / "checkpoints" / f"step_{step:08d}"

    def saved_steps(self, run):
        return sorted(int(p.parent.name[5:]) for p in (self.work / run / "checkpoints").glob("step_*/manifest.json")
                      if ".tmp-" not in p.parent.name)

    def manifest(self, checkpoint):
        return json.loads((pathlib.Path(checkpoint) / "manifest.json").read_text())

    def tensors(self, checkpoint):
        return {t["path"]: [p["xxh3_64"] for p in t["pieces"]] for t in self.manifest(checkpoint)["tensors"]}

    def assert_same_run(self, first, second, step):
        """Weights, optimizer state, data cursor and every loss of the two runs agree bit for bit."""
        a, b = self.manifest(self.folder(first, step)), self.manifest(self.folder(second, step))
        self.assertEqual(self.tensors(self.folder(first, step)), self.tensors(self.folder(second, step)))
        for key in ("sample", "tokens", "seed", "loss"):
            self.assertEqual(a["run"][key], b["run"][key], key)
        self.assertEqual(self.losses(first), self.losses(second))

    def assert_one_message(self, output):
        self.assertEqual(output.count("sestina: error:"), 1, output[-3000:])

    def assert_nothing_left(self, run):
        """No temporary folder, but for those whose number a living process has taken over since."""
        left = [p.name for p in (self.work / run / "checkpoints").iterdir()
                if ".tmp-" in p.name and not os.path.exists(f"/proc/{p.name.rpartition('-')[2]}")]
        self.assertEqual(left, [])


def flip_bit(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def xxh3(data):
    """Digests of 64 and 128 bits as this program writes them, by the library that it is linked with."""
    library = ctypes.CDLL("libxxhash.so.0")

    class Both(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    library.XXH3_64bits.restype, library.XXH3_128bits.restype = ctypes.c_uint64, Both
    data, size = bytes(data), ctypes.c_size_t(len(data))
    both = library.XXH3_128bits(data, size)
    return f"{library.XXH3_64bits(data, size):016x}", f"{both.high:016x}{both.low:016x}"


def poison(checkpoint, name):
    """Puts a NaN into the first tensor whose path has this name in it, and makes every digest right again."""
    manifest = checkpoint / "manifest.json"
    content = json.loads(manifest.read_text())
    tensor = next(tensor for tensor in content["tensors"] if name in tensor["path"])
    piece = tensor["pieces"][0]
    file = content["files"][piece["file"]] if isinstance(piece["file"], int) else next(f for f in content["files"] if f["name"] == piece["file"])
    shard = checkpoint / file["name"]
    data = bytearray(shard.read_bytes())
    at = piece["offset"] + 4
    data[at:at + 4] = struct.pack("<f", float("nan"))
    shard.write_bytes(data)
    piece["xxh3_64"] = xxh3(data[piece["offset"]:piece["offset"] + piece["bytes"]])[0]
    file["xxh3_128"] = xxh3(data)[1]
    del content["digest"]
    text = json.dumps(content, indent=1)[:-1].rstrip()
    manifest.write_text(f'{text},\n"digest": "{xxh3(text.encode())[1]}"\n}}\n')
    return tensor["path"]


def rounds(in_ci):
    return int(os.environ.get("SESTINA_FAULT_ROUNDS", in_ci))


TERM, INT, KILL, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGHUP


def main(file, *names):
    """Runs tests of a file, Class.method each, all where none is named; ends with 77 when every one of them was skipped."""
    result = unittest.main(module=pathlib.Path(file).stem, argv=[file, *names], verbosity=2, exit=False).result
    return 1 if not result.wasSuccessful() else 77 if result.testsRun == len(result.skipped) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
