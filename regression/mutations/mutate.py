#!/usr/bin/env python3
"""Shows that the quick tests notice deliberate errors: mutations.toml, one at a time. Python 3.11, standard library alone.

  mutate.py --check                     each text to be replaced stands exactly once in its file (a quick test)
  mutate.py --build DIR [--only TEXT]   copies the tree into DIR/mutations, builds it there with the settings of the build in
                                        DIR, and then for each mutation: build, run its tests, which must fail, put back.
                                        The tests must pass before the first one. About a minute each on two cores.
  mutate.py --build DIR --here          the same in the tree and in the build themselves, for those that nobody else uses
                                        meanwhile: nothing is built twice
"""

import argparse
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def read_mutations():
    return tomllib.loads((HERE / "mutations.toml").read_text())["mutation"]


def check(mutations):
    wrong = [f"{m['name']}: stands {n} times in {m['file']}" for m in mutations
             if (n := (ROOT / m["file"]).read_text().count(m["old"])) != 1]
    print("\n".join(wrong) or f"{len(mutations)} mutations can be made")
    return 1 if wrong else 0


def call(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


def copy_tree(target):
    shutil.rmtree(target, ignore_errors=True)
    for name in call("git", "-C", ROOT, "ls-files").stdout.splitlines():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place)


def configure(source, build, like):
    """With the compiler, the launcher and the libraries of the build in `like`."""
    cache = (like / "CMakeCache.txt").read_text()
    options = [f"-D{name}={value}" for name, value in
               re.findall(r"^(CMAKE_CXX_COMPILER|CMAKE_CXX_COMPILER_LAUNCHER|CMAKE_PREFIX_PATH|Kokkos_DIR)(?::\w+)?=(.+)$", cache, re.M)]
    done = call("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", *options)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-2000:])


def failed_tests(build, mutation):
    """The first test that fails in a list, an empty one, or None where the build failed."""
    if call("cmake", "--build", build, "--target", *mutation["targets"]).returncode:
        return None
    done = call("ctest", "--test-dir", build, "--no-tests=error", "--stop-on-failure", "-R", mutation["tests"])
    return re.findall(r"Test +#\d+: (\S+) .*\*\*\*", done.stdout)[:1] or (["no test"] if done.returncode else [])


def run(mutations, like, here):
    source, build = (ROOT, like) if here else (like / "mutations/source", like / "mutations/build")
    if not here:
        copy_tree(source)
        configure(source, build, like)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what was changed is put back
    survived = 0
    for mutation in mutations:
        if failed_tests(build, mutation) != []:
            sys.exit(f"{mutation['name']}: {mutation['tests']} does not pass without the error")
    for mutation in mutations:
        path = source / mutation["file"]
        good = path.read_text()
        try:
            path.write_text(good.replace(mutation["old"], mutation["new"]))
            failed = failed_tests(build, mutation)
        finally:
            path.write_text(good)
        word = "DOES NOT COMPILE" if failed is None else f"noticed by {failed[0]}" if failed else "SURVIVED"
        survived += not failed
        print(f"{word}: {mutation['name']} ({mutation['file']}; {mutation['tests']})", flush=True)
    print(f"{len(mutations) - survived} of {len(mutations)} noticed")
    return 1 if survived else 0


def main():
    parser = argparse.ArgumentParser(description="Deliberate errors that the quick tests must notice")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, help="an existing build folder")
    parser.add_argument("--here", action="store_true", help="in the tree itself instead of a copy")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    options = parser.parse_args()
    mutations = [m for m in read_mutations() if options.only in m["name"]]
    if options.check or not options.build:
        return check(mutations)
    return check(mutations) or run(mutations, options.build.resolve(), options.here)


if __name__ == "__main__":
    sys.exit(main())
