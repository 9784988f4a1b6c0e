"""What the checks of the tree share: its rooms, its source files, their includes."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = ["app", "io", "parallel", "core", "kernels"]  # a room includes only what stands to its right
TWINS = re.compile(r"_(host|cuda|nccl|none|kokkos|mpi|alone|onednn|uring|absent)\.[ch]pp$")  # a build has one of them
CODE = {".cpp", ".hpp", ".cu", ".h", ".c"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def sources(folders=(*ROOMS, "regression"), suffixes=CODE):
    """All code files below the folders, sorted, relative to the root."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path.relative_to(ROOT)


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def includes(path):
    """(line number, name, is it one of the project's files) of each include."""
    content = text(path)
    for match in INCLUDE.finditer(content):
        name = match.group(2)
        line = content.count("\n", 0, match.start(2)) + 1
        yield line, name, match.group(1) == '"' and (ROOT / name).is_file()


def finish(problems, checked):
    """Prints the problems and ends the script; fails too when nothing was checked."""
    for problem in problems:
        print(problem)
    print(f"{checked} files checked, {len(problems)} problems")
    sys.exit(1 if problems or not checked else 0)
