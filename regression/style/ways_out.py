"""A library ends no process and takes no ranks that it was not given: each of these words stands in one source of the
rooms, and main() alone returns an exit code (kernels/base/exit_handler.hpp, parallel/comm/ranks_of_mpi.hpp)."""
import re

import tree

# What is looked for, and the only files of the rooms that may have it.
RULES = {
    r"\b(?<!std::)(_exit|_Exit|quick_exit)\s*\(": {"kernels/base/exit_handler.cpp",
                                                             "app/address_limit.cpp",  # before main()
                                                             "app/sweep/child_runs.cpp"},  # between fork and exec
    r"\b(std::abort|std::exit|std::quick_exit|std::_Exit|std::terminate)\s*\(": set(),
    r"(?<![\w.:>])exit\s*\(": set(),
    r"(?<![\w.:>])abort\s*\(\s*\)\s*;": {"parallel/comm/group_nccl.hpp"},  # a method of its class
    r"\bMPI_Abort\s*\(": {"parallel/comm/runtime_mpi.cpp"},
    r"\bMPI_COMM_WORLD\b": {"app/start/all_ranks_mpi.cpp"},
}
COMMENT = re.compile(r"//.*")


def check(path):
    for number, line in enumerate(tree.text(path).splitlines(), 1):
        code = COMMENT.sub("", line)
        for pattern, allowed in RULES.items():
            found = re.search(pattern, code)
            if found and str(path) not in allowed:
                where = ", ".join(sorted(allowed)) or "nowhere"
                yield f"{path}:{number}: {found.group().strip()}: allowed in: {where}"


def unused():
    """A rule that finds nothing where it allows something looks for the wrong words."""
    for pattern, allowed in RULES.items():
        for name in allowed:
            if not any(re.search(pattern, COMMENT.sub("", line)) for line in tree.text(name).splitlines()):
                yield f"{name}: no {pattern}"


# The rules find what they are for.
for text in ("_exit(1);", "std::abort();", "exit(1);", "abort();", "MPI_Abort(comm, 1);", "f(MPI_COMM_WORLD)"):
    assert any(re.search(pattern, text) for pattern in RULES), text
for text in ("runtime.abort(code);", "ranks::abort(code);", 'getenv("OMPI_COMM_WORLD_SIZE")', "io_uring_queue_exit(&ring);"):
    assert not any(re.search(pattern, text) for pattern in RULES), text

files = list(tree.sources(folders=tree.ROOMS))
tree.finish([problem for path in files for problem in check(path)] + list(unused()), len(files))
