"""Just enough of Spack to read a recipe without it: the directives of a class body are kept as they are called, and a
chosen combination of variants answers conditions such as "+cuda cuda_arch=90"; its stand-alone tests run against any
prefix. Python 3.11, standard library alone."""

import contextlib
import dataclasses
import importlib.util
import itertools
import os
import pathlib
import subprocess
import sys
import types

CUDA_ARCHES = ("70", "75", "80", "86", "89", "90", "100", "120")


@dataclasses.dataclass
class Directive:
    kind: str
    words: tuple
    options: dict
    when: list  # all must hold


class Conditions(list):
    """Conditions of the `with when(...)` blocks around a directive."""


class Recorder:
    def __init__(self):
        self.found, self.around = [], Conditions()

    def directive(self, kind):
        def record(*words, when=None, **options):
            self.found.append(Directive(kind, words, options, [*self.around, *([when] if when else [])]))
        return record

    @contextlib.contextmanager
    def when(self, condition):
        self.around.append(condition)
        yield
        self.around.pop()


def words_of(spec):
    """("", ["+cuda", "cuda_arch=90"]) of "+cuda cuda_arch=90"; ("kokkos", [...]) of "kokkos@4: +openmp"."""
    text = spec.replace("+", " +").replace("~", " ~")
    name, parts = "", []
    for word in text.split():
        if word[0] in "+~" or "=" in word:
            parts.append(word)
        else:
            name, at, version = word.partition("@")
            parts += [at + version] if at else []
    return name, parts


class Combination:
    """Values of all variants that exist for it."""

    def __init__(self, values, packages=None):
        self.values, self.packages = values, packages or {}

    def holds(self, condition):
        own, *others = condition.split("^")
        for word in words_of(own)[1]:
            if word[0] == "@":
                continue
            if word[0] in "+~":
                if self.values.get(word[1:]) is not (word[0] == "+"):
                    return False
            else:
                key, value = word.split("=")
                if key != "platform" and str(self.values.get(key)) != value:
                    return False
        return all(self.has(other) for other in others)

    def has(self, other):
        name, parts = words_of(other.split("] ")[-1])
        return name in self.packages and all(part in self.packages[name] or part[0] == "@" for part in parts)

    # What a recipe asks of its spec.
    satisfies = holds

    def __getitem__(self, name):
        return types.SimpleNamespace(prefix=f"/prefix/{name}")

    def __str__(self):
        return " ".join(f"{'+' if v else '~'}{k}" if isinstance(v, bool) else f"{k}={v}" for k, v in self.values.items())


class FakeBuild:
    """CMakePackage and CudaPackage: CMake arguments as Spack writes them."""

    cuda_arch_values = CUDA_ARCHES

    def define(self, name, value):
        return f"-D{name}={('ON' if value else 'OFF') if isinstance(value, bool) else value}"

    def define_from_variant(self, name, variant):
        return self.define(name, self.spec.values[variant]) if variant in self.spec.values else ""

    def __getitem__(self, name):
        return types.SimpleNamespace(kokkos_cxx=f"/prefix/{name}/bin/nvcc_wrapper")


class Prefix(str):
    """prefix.bin.sestina is a path, as Spack has it."""

    def __getattr__(self, name):
        return Prefix(f"{self}/{name}")


def which(path, required=False):
    """A program that is called with its words, fails as Spack's does and returns its output."""
    if not os.access(path, os.X_OK):
        if required:
            raise FileNotFoundError(path)
        return None

    def run(*words, output=None):
        done = subprocess.run([path, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise RuntimeError(f"{path} {words}: {done.returncode}\n{done.stdout[-3000:]}")
        return done.stdout
    return run


@contextlib.contextmanager
def working_dir(path, create=False):
    if create:
        os.makedirs(path, exist_ok=True)
    with contextlib.chdir(path):
        yield


def stand_alone_test(recipe, name, prefix, stage):
    """Runs a test_* of the recipe against an installation."""
    package = recipe()
    package.prefix, package.test_suite = Prefix(prefix), types.SimpleNamespace(stage=str(stage))
    getattr(package, name)()


def read_recipe(path):
    """(class, its directives)"""
    recorder = Recorder()
    package = types.ModuleType("spack.package")
    for kind in ("version", "variant", "depends_on", "conflicts", "requires", "license", "generator", "maintainers"):
        setattr(package, kind, recorder.directive(kind))
    package.when = recorder.when
    package.join_path = lambda *parts: "/".join(map(str, parts))
    package.which, package.working_dir = which, working_dir
    package.__all__ = [name for name in vars(package) if not name.startswith("__")]
    names = {"spack.package": package}
    for system, cls in (("cmake", "CMakePackage"), ("cuda", "CudaPackage")):
        module = types.ModuleType(f"spack_repo.builtin.build_systems.{system}")
        setattr(module, cls, type(cls, (FakeBuild,), {}))
        names[module.__name__] = module
    for name in list(names):
        for parent in itertools.accumulate(name.split(".")[:-1], lambda a, b: f"{a}.{b}"):
            names.setdefault(parent, types.ModuleType(parent))
    sys.modules.update(names)
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Sestina, recorder.found


def combinations(directives, cuda=(None, "80", "90")):
    """Every legal combination of variants; cuda_arch None: ~cuda."""
    variants = {d.words[0]: d for d in directives if d.kind == "variant"}
    choices = {name: d.options.get("values", (True, False)) for name, d in variants.items()}
    for arch in cuda:
        for picked in itertools.product(*choices.values()):
            values = {"cuda": arch is not None} | ({"cuda_arch": arch} if arch else {}) | dict(zip(choices, picked))
            whole = Combination(dict(values))
            for name, d in variants.items():
                if not all(whole.holds(condition) for condition in d.when):
                    del values[name]
            chosen = Combination(values)
            absent = [name for name in choices if name not in values]
            if any(dict(zip(choices, picked))[name] for name in absent):
                continue  # the same combination comes with that variant off
            refused = [d for d in directives if d.kind == "conflicts" and all(chosen.holds(c) for c in [d.words[0], *d.when])]
            if not refused:
                chosen.packages = packages(directives, chosen)
                yield chosen


def packages(directives, chosen):
    """{name: [what is asked of it]} of a combination."""
    found = {}
    chosen.packages = found
    for d in directives:
        if d.kind == "depends_on" and all(chosen.holds(condition) for condition in d.when):
            name, parts = words_of(d.words[0])
            found.setdefault(name, []).extend(parts)
    return found


def intervals(parts):
    """[(lower, upper)] of the version ranges among what is asked of a package; "" where a side is open."""
    ranges = [part[1:] for part in parts if part[0] == "@"]
    return [(*one.partition(":")[::2],) if ":" in one else (one, one) for text in ranges for one in text.split(",")]


def order(version):
    """Versions in their order: 4.7.00 before 4.10."""
    return [int(number) for number in version.split(".")]


def admits(interval, version):
    """As Spack has it: an upper bound of 2 admits every 2.x."""
    lower, upper = interval
    above = not lower or order(version) >= order(lower)
    return above and (not upper or order(version)[:len(order(upper))] <= order(upper))
