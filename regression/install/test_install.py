"""Installs the build and uses it from there: programs and suite out of a prefix that nobody writes to, and a project that
takes the installed package, adds an optimizer of its own and trains with it. Python 3.11, standard library alone.
BUILD_DIR, CMAKE, PREFIX_PATH (of the build's libraries, with ":") and MPIEXEC come from the surroundings."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "regression/spack"))
import fake_spack  # noqa: E402

BUILD, CMAKE = pathlib.Path(os.environ["BUILD_DIR"]), os.environ["CMAKE"]
BAD_DECK = 78
# Of the unit tests those that read texts and decks: that the suite runs all of them is not what is tried here.
SOME_TESTS = {"GTEST_FILTER": "Tokenizer.*:TextTokens.*:CommandLine.*"}


def contents(folder):
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="sestina-install-"))
        first, cls.prefix = cls.folder / "first", cls.folder / "prefix"
        subprocess.run([CMAKE, "--install", BUILD, "--prefix", first], check=True, stdout=subprocess.DEVNULL)
        first.rename(cls.prefix)  # a prefix may be moved
        for path in [cls.prefix, *cls.prefix.rglob("*")]:
            path.chmod(path.stat().st_mode & ~0o222)
        cls.before = contents(cls.prefix)

    @classmethod
    def tearDownClass(cls):
        for path in [cls.prefix, *cls.prefix.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
        shutil.rmtree(cls.folder)

    def tearDown(self):
        self.assertEqual(contents(self.prefix), self.before, "something wrote into the installation")

    def call(self, *words, expected=0, **environment):
        done = subprocess.run([str(word) for word in words], cwd=self.folder, capture_output=True, text=True,
                              env={"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"} | dict(os.environ) | environment)
        self.assertEqual(done.returncode, expected, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout + done.stderr

    def test_files(self):
        library = next(self.prefix.glob("lib*/**/cmake/Sestina")).relative_to(self.prefix)
        for name in ("bin/sestina", "bin/sestina-bench", "bin/sestina-diagnose", "bin/sestina-replay", "bin/sestina-regression", f"{library}/SestinaConfig.cmake",
                     "share/sestina/inputs/tiny_llama.toml", "share/sestina/examples/own_optimizer/main.cpp",
                     "include/sestina/core/optimizer/base/register_kind.hpp"):
            self.assertTrue((self.prefix / name).is_file(), name)
        for script in ("train", "regression", "array"):
            if (pathlib.Path(__file__).parents[2] / f"app/slurm/{script}.sbatch").exists():
                self.assertTrue((self.prefix / f"share/sestina/slurm/{script}.sbatch").is_file(), script)

    def test_program_and_decks(self):
        self.assertIn("sestina", self.call(self.prefix / "bin/sestina", "--version"))
        for deck in ("tiny_llama", "plan_qwen3_32b"):
            self.call(self.prefix / "bin/sestina", "plan", "-i", self.prefix / f"share/sestina/inputs/{deck}.toml")
        link, deck = self.folder / "linked", self.prefix / "share/sestina/inputs/tiny_muon.toml"
        link.symlink_to(self.prefix / "bin/sestina")
        bench = json.loads(self.call(link, "bench", "optimizer", "-i", deck, "data.source=[]", "--steps", "1", "--json"))
        self.assertGreater(bench["optimizer_s"], 0)

    def suite(self, *words, **options):
        return self.call(self.prefix / "bin/sestina-regression", "-B", self.folder / "suite", *words, **options)

    def test_suite(self):
        listed = self.suite("-N", "-L", "quick")
        for name in ("unit.kernels", "unit.io", "mpi.Communicator.2", "case.llama-adamw", "replay.golden"):
            if name.startswith("mpi") and not (self.prefix / "libexec/sestina/unit_mpi").exists():
                continue
            self.assertIn(name, listed)
        self.assertNotIn("fault.", listed)
        self.assertIn("fault.plan", self.suite("-N", "-L", "fault"))
        answer = self.suite("-R", r"^(unit\.(io|app)|mpi\.Communicator\.2|case\.llama-adamw|replay\.golden)$", **SOME_TESTS)
        self.assertIn("0 failed, 0 skipped", answer)
        self.assertIn("no such test", self.suite("-R", "nothing", expected=64))

    def test_suite_reads_the_installation_alone(self):
        """A copy without its texts: the tests that read them fail, whatever the source tree still has."""
        copy = self.folder / "copy"
        shutil.copytree(self.prefix, copy)
        data = copy / "share/sestina/regression/data"
        data.chmod(0o700)
        for text in data.glob("*.txt"):
            text.unlink()
        answer = self.call(copy / "bin/sestina-regression", "-B", self.folder / "suite2", "-R", "^unit.io$", expected=1, **SOME_TESTS)
        self.assertIn("0 passed, 1 failed", answer)
        for path in [copy, *copy.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)

    def built(self, source, name, *options):
        """The build folder of a project that uses the installed package."""
        paths = ":".join(filter(None, (str(self.prefix), os.environ.get("PREFIX_PATH"), os.environ.get("CMAKE_PREFIX_PATH"))))
        self.call(CMAKE, "-G", "Ninja", "-S", source, "-B", self.folder / name, *options, CMAKE_PREFIX_PATH=paths)
        self.call(CMAKE, "--build", self.folder / name)
        return self.folder / name

    def test_stand_alone_tests_of_the_recipe(self):
        """Those that Spack runs against an installation, and that training which trains nothing is found out."""
        recipe, _ = fake_spack.read_recipe(ROOT / "app/spack_repo/sestina/packages/sestina/package.py")
        with unittest.mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "false"}):
            for name in ("test_version", "test_plan", "test_train_and_resume"):
                fake_spack.stand_alone_test(recipe, name, self.prefix, self.folder / name)
        idle = self.folder / "idle/bin/sestina"
        idle.parent.mkdir(parents=True)
        idle.write_text("#!/bin/sh\nmkdir -p run && : >>run/metrics.jsonl\n")
        idle.chmod(0o755)
        with self.assertRaises(AssertionError):
            fake_spack.stand_alone_test(recipe, "test_train_and_resume", self.folder / "idle", self.folder / "idle_stage")

    def test_headers_include_each_other_in_the_package(self):
        include = self.prefix / "include"
        headers = sorted(include.rglob("*.hpp"))
        self.assertGreater(len(headers), 200)
        for header in headers:
            for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"]*)"', header.read_text(), re.MULTILINE):
                self.assertTrue(name.startswith("sestina/") and (include / name).is_file(), f"{header}: {name}")

    def test_package(self):
        """All headers compile together, in both orders (which leans on no other that happens to come first), next to another
        project's of the same names. Those of twins for other devices need libraries or processors that are not there."""
        include, texts = self.prefix / "include", self.folder / "headers"
        other = r"_(cuda|nccl|kokkos|avx512)\.hpp$" if os.environ.get("MPIEXEC") else r"_(cuda|nccl|kokkos|avx512|mpi)\.hpp$"
        lines = [f'#include "{path.relative_to(include)}"\n' for path in sorted(include.rglob("*.hpp"))
                 if not re.search(other, path.name)]
        texts.mkdir()
        for name, order in (("forward", lines), ("backward", lines[::-1])):
            (texts / f"{name}.cpp").write_text("".join(order))
        build = self.built(HERE / "package", "package", f"-DHEADERS={texts}", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O0")
        self.assertEqual(self.call(build / "version"), self.call(self.prefix / "bin/sestina", "--version"))

    def test_own_optimizer(self):
        source = self.prefix / "share/sestina/examples/own_optimizer"
        build = self.built(source, "own")
        program, deck, run = build / "own_optimizer", source / "deck.toml", self.folder / "run"
        self.assertIn("sign-momentum", self.call(self.prefix / "bin/sestina", "train", "-n", "-i", deck, expected=BAD_DECK))
        self.assertIn("beta = 0.95", self.call(program, "train", "-n", "-i", deck))
        self.call(program, "train", "-i", deck, "-d", run)
        losses = self.losses(run)
        self.assertLess(losses[40], 0.8 * losses[5])
        self.assertNotEqual(losses, self.trained(program, deck, "other", "optimizer.beta=0.5"))
        adamw = self.trained(program, deck, "adamw", "optimizer.kind=adamw", expected=BAD_DECK)
        self.assertIn("optimizer.beta", adamw)
        # State is saved and found again: a run that was stopped half-way ends with the same bits.
        self.call(program, "train", "-i", deck, "-d", self.folder / "halves", "run.steps=20", "run.deterministic=true")
        self.call(program, "train", "-i", deck, "-d", self.folder / "halves", "-r", "auto", "run.deterministic=true")
        self.assertEqual(self.losses(self.folder / "halves"), self.trained(program, deck, "whole", "run.deterministic=true"))
        self.assertIn("sign-momentum", self.call(program, "plan", "-i", deck, "optimizer.kind=no-such", expected=BAD_DECK))
        bench = self.call(program, "bench", "optimizer", "-i", deck, "data.source=[]", "--steps", "1")
        self.assertIn("sign-momentum", self.call(self.prefix / "bin/sestina", "bench", "optimizer", "-i", deck, expected=BAD_DECK))
        self.assertIn("sign-momentum", bench)

    def trained(self, program, deck, name, *words, expected=0):
        text = self.call(program, "train", "-i", deck, "-d", self.folder / name, *words, expected=expected)
        return text if expected else self.losses(self.folder / name)

    def losses(self, run):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return {line["step"]: line["loss"] for line in lines if line["kind"] == "train"}


if __name__ == "__main__":
    unittest.main()
