"""The rooms' rules: app -> io -> parallel -> core -> kernels, one way, and also between the sub-folders of each; no
system library of the outer rooms in core or kernels; of the kernels, io sees kernels/base alone, which knows no Kokkos;
no source declares by hand what another one defines; what is a program of its own is known to it alone; types of a space and of its numbers end below app and parallel/step; what says "No Kokkos" includes none, through no other header either; no folder is too full to look through."""
import collections
import functools
import pathlib
import re

import tree

OUTER_LIBRARIES = {"mpi.h", "nccl.h", "hdf5.h", "liburing.h"}
MOST_ENTRIES = 35
MOST_TEMPLATES = {"app": 5, "parallel/step": 30}  # lines that begin with one, in all of the folder

# A sub-folder includes only what stands to its right, and no file that lies in the folder itself.
INNER = {
    "kernels": ["optimizer", "model", "blas", "base"],
    "core": ["check", "optimizer", "model", "memory", "layout", "deck"],
    "core/optimizer": ["methods", "refresh", "base"],
    "parallel": ["stage", "step", "exchange", "plan", "rounds", "comm", "library"],
    "io": ["checkpoint", "tokens", "hf", "tokenizer", "report", "store"],
    "app": ["experiments", "bench", "verbs", "sweep", "train", "audit", "watch", "start", "command"],
}

# Programs of their own in app, and the headers of other rooms that are for them alone: `sestina` does not link these.
PROGRAMS = {"app/experiments": ["core/hessian_norm.hpp"], "app/bench": ["core/benches.hpp"]}


def place(path, folder):
    """How far down a file stands in a folder: 0 in the folder itself, then its sub-folders in their order. None: not there."""
    path, folder = pathlib.PurePath(path), pathlib.PurePath(folder)
    if not path.is_relative_to(folder):
        return None
    inner = path.relative_to(folder).parts
    return 0 if len(inner) == 1 else 1 + INNER[str(folder)].index(inner[0])


def inner_problems(path):
    for folder, order in INNER.items():
        own = place(path, folder)
        if own is None:
            continue
        for line, name, ours in tree.includes(path):
            other = place(name, folder) if ours else None
            if other is not None and other < own:
                yield f"{path}:{line}: must not include {name}; in {folder} it goes {' -> '.join(order)}"


def program_problems(path):
    for folder, headers in PROGRAMS.items():
        for line, name, _ in tree.includes(path):
            if not path.is_relative_to(folder) and (name.startswith(f"{folder}/") or name in headers):
                yield f"{path}:{line}: must not include {name}, which is for {folder} alone: a program of its own"


@functools.cache
def road_to_kokkos(path):
    """The chain of includes from a file of the project to Kokkos, or None."""
    for _, name, own in tree.includes(path):
        if name.startswith("Kokkos"):
            return [str(path), name]
        if own and (rest := road_to_kokkos(pathlib.Path(name))):
            return [str(path), *rest]
    return None


# A declaration at the left margin of a source: types, a name, parameters, a semicolon.
DECLARATION = re.compile(
    r"^(?!using|return|template|namespace|#|static|extern|friend|typedef|constexpr)(?:[\w:<>,&*]+ )+(\w+)"
    r"\((?:[^;{}()]|\([^()]*\))*\)(?: const)?(?: noexcept)?;", re.MULTILINE)


def foreign_prototypes(path):
    """Functions that a source declares by hand although another one defines them: that belongs into a header."""
    content = re.sub(r"//[^\n]*", "", tree.text(path))
    for match in DECLARATION.finditer(content):
        if not re.search(rf"\b{match.group(1)}\([^;]*\)[^;]*\{{", content[match.end():]):
            line = content.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: declares {match.group(1)}, which it does not define: include its header"


def typed_folders():
    """Template heads of what stands above the stages (parallel/step/pipeline_stage.hpp): a few, and none of them typed on a space."""
    for folder, most in MOST_TEMPLATES.items():
        heads = 0
        for path in tree.sources([folder]):
            lines = [line for line in tree.text(path).splitlines() if re.match(r"\s*template\b", line)]
            heads += len(lines)
            if any(re.search(r"\b(class|typename) Exec\b", line) for line in lines):
                yield f"{path}: typed on an execution space, which {folder} does not know: parallel/stage, or lower down"
        if heads > most:
            yield f"{folder}: {heads} template heads, at most {most}"


def check(path):
    room = path.parts[0]
    if room in tree.ROOMS:
        if path.suffix == ".cpp":
            yield from foreign_prototypes(path)
        allowed = tree.ROOMS[tree.ROOMS.index(room):]
        for line, name, own in tree.includes(path):
            target = pathlib.PurePath(name).parts[0]
            if target in tree.ROOMS and target not in allowed:
                yield f"{path}:{line}: {room} must not include {name}; it knows {', '.join(allowed)}"
            if room == "io" and target == "kernels" and not name.startswith("kernels/base/"):
                yield f"{path}:{line}: io must not include {name}; of the kernels it knows kernels/base"
            if target == "regression":
                yield f"{path}:{line}: the program must not include {name} of its tests"
            if room in ("core", "kernels") and name in OUTER_LIBRARIES:
                yield f"{path}:{line}: {name} has no place in {room}"
        yield from inner_problems(path)
        if room == "app":
            yield from program_problems(path)
        if path.is_relative_to("kernels/base") and (road := road_to_kokkos(path)):
            yield f"{path}: kernels/base knows no Kokkos, but {' -> '.join(road)}"
    if path.suffix == ".hpp" and "No Kokkos" in tree.text(path).split("#pragma once")[0]:
        if road := road_to_kokkos(path):
            yield f"{path}: says \"No Kokkos\", but {' -> '.join(road)}"


def full_folders():
    entries = collections.defaultdict(set)
    for path in tree.sources(tree.ROOMS):
        for parent in path.parents:
            entries[parent].add(path.relative_to(parent).parts[0])
    for folder, names in entries.items():
        if len(names) > MOST_ENTRIES:
            yield f"{folder}: {len(names)} entries, at most {MOST_ENTRIES}"


files = list(tree.sources())
tree.finish([problem for path in files for problem in check(path)] + list(full_folders()) + list(typed_folders()), len(files))
