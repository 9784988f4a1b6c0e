"""`sestina bench` and `sestina diagnose` are programs of their own next to `sestina`, which starts them in its place: their
code is not in it, words, answers and exit codes are the same either way, and a program that is not there is one message.
Python 3.11, standard library alone. SESTINA names the program, NM the tool that lists symbols, SHARED=1 a build of shared
libraries (which hold the code of all programs)."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SESTINA = pathlib.Path(os.environ["SESTINA"]).resolve()
USAGE, UNAVAILABLE = 64, 69
# Functions of each program, by their names in the symbol table.
OWN = {"bench": ("run_bench_step", "run_bench_io", "machine_table", "bench_kernels", "bench_optimizer"),
       "diagnose": ("run_diagnose_hessian", "read_bases", "hessian_row_norms")}


def call(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    return done.returncode, done.stdout, done.stderr


class Programs(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sestina-programs-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def alone(self, verb, text="", mode=0o755):
        """The program in a folder of its own, next to a script in the place of sestina-<verb> if it has a text."""
        copy = self.folder / "bin/sestina"
        copy.parent.mkdir(exist_ok=True)
        if not copy.exists():
            shutil.copy(SESTINA, copy)
        other = copy.parent / f"sestina-{verb}"
        if text:
            other.write_text(text)
            other.chmod(mode)
        return copy, other

    @unittest.skipIf(os.environ.get("SHARED") == "1", "shared libraries hold the code of all programs")
    @unittest.skipUnless(os.environ.get("NM"), "no tool that lists symbols")
    def test_code_of_one_is_not_in_another(self):
        def symbols(path):
            return subprocess.run([os.environ["NM"], "--defined-only", path], capture_output=True, text=True, check=True).stdout

        found = {name: symbols(SESTINA.with_name(name)) for name in ("sestina", *(f"sestina-{verb}" for verb in OWN))}
        for verb, functions in OWN.items():
            for function in functions:
                mangled = f"{len(function)}{function}E"  # as a name in a namespace ends
                self.assertEqual([name for name, text in found.items() if mangled in text], [f"sestina-{verb}"], function)

    def test_a_program_that_is_not_there(self):
        for verb, words in (("bench", ("kernels", "run.steps=1")), ("diagnose", ("hessian", "-r", "run"))):
            copy, other = self.alone(verb)
            message = (f"sestina: error: {other}: cannot be started: No such file or directory; `sestina {verb}` is this program, "
                       f"which belongs next to {copy}\n")
            self.assertEqual(call(copy, verb, *words), (UNAVAILABLE, "", message))
            self.alone(verb, "no program", mode=0o644)
            self.assertIn("Permission denied", call(copy, verb, *words)[2])
            # What is wrong with the words is said first, and help needs no other program.
            self.assertEqual(call(copy, verb, "no-such")[0], USAGE)
            self.assertEqual(call(copy, verb, words[0], "-h")[0], 0)

    def test_words_surroundings_and_code_pass_through(self):
        copy, other = self.alone("bench", '#!/bin/sh\nprintf "%s\\n" "$0" "$MARK" "$$" "$@"\ncat\nexit 7\n')
        words = ("io", "-i", "a deck.toml", "run.name=bench", "--size", "3")
        process = subprocess.Popen([copy, "--kokkos-num-threads=2", "bench", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, env=os.environ | {"MARK": "mark"})
        answer, _ = process.communicate("input\n")
        expected = [str(other), "mark", str(process.pid), "--kokkos-num-threads=2", *words, "input", ""]
        self.assertEqual((process.returncode, answer), (7, "\n".join(expected)))

    def test_it_is_found_through_links_and_the_path(self):
        copy, other = self.alone("diagnose", '#!/bin/sh\necho "$0"\n')
        links = self.folder / "links"
        links.mkdir()
        (links / "s").symlink_to("../bin/sestina")
        for program in ("s", links / "s", "links/s"):
            answer = call(program, "diagnose", "hessian", "-r", "run", cwd=self.folder, env=os.environ | {"PATH": f"{links}:{os.environ['PATH']}"})
            self.assertEqual(answer, (0, f"{other}\n", ""))

    def test_answers_are_the_same_either_way(self):
        for verb, calls in (("bench", (["kernels"], ["optimizer", "-h"], ["io", "--size", "0"], ["step", "-i", "none.toml"], [], ["-h"], ["steps"])),
                            ("diagnose", (["hessian"], ["hessian", "-r", "none"], ["hessian", "-h"], [], ["hessian", "-r", "none", "--seeds"]))):
            for words in calls:
                self.assertEqual(call(SESTINA, verb, *words), call(SESTINA.with_name(f"sestina-{verb}"), *words), words)
            self.assertEqual(call(SESTINA.with_name(f"sestina-{verb}"), "-V"), call(SESTINA, "-V"))


if __name__ == "__main__":
    unittest.main()
