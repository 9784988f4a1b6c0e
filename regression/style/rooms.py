"""The rooms' rules: app -> io -> parallel -> core -> kernels, one way; no system library of the outer rooms in core or
kernels; what says "No Kokkos" includes none, through no other header either."""
import functools
import pathlib

import tree

OUTER_LIBRARIES = {"mpi.h", "nccl.h", "hdf5.h", "liburing.h"}


@functools.cache
def road_to_kokkos(path):
    """The chain of includes from a file of the project to Kokkos, or None."""
    for _, name, own in tree.includes(path):
        if name.startswith("Kokkos"):
            return [str(path), name]
        if own and (rest := road_to_kokkos(pathlib.Path(name))):
            return [str(path), *rest]
    return None


def check(path):
    room = path.parts[0]
    if room in tree.ROOMS:
        allowed = tree.ROOMS[tree.ROOMS.index(room):]
        for line, name, own in tree.includes(path):
            target = pathlib.PurePath(name).parts[0]
            if target in tree.ROOMS and target not in allowed:
                yield f"{path}:{line}: {room} must not include {name}; it knows {', '.join(allowed)}"
            if target == "regression":
                yield f"{path}:{line}: the program must not include {name} of its tests"
            if room in ("core", "kernels") and name in OUTER_LIBRARIES:
                yield f"{path}:{line}: {name} has no place in {room}"
    if path.suffix == ".hpp" and "No Kokkos" in tree.text(path).split("#pragma once")[0]:
        if road := road_to_kokkos(path):
            yield f"{path}: says \"No Kokkos\", but {' -> '.join(road)}"


files = list(tree.sources())
tree.finish([problem for path in files for problem in check(path)], len(files))
