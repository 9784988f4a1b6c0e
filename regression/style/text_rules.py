"""Rules on the text of code and scripts: no leftover marks, no #ifdef outside the vendor twins, #pragma once in headers,
no tabs in code, no trailing blanks."""
import re

import tree

MARK = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b")
TWIN = re.compile(r"_(host|cuda|onednn|openblas|mpi|nccl|uring)\.cpp$")
MAY_ASK = {"kernels/blas/exec.hpp", "kernels/blas/bf16.hpp"}  # where types depend on the backend of this build


def check(path):
    name = str(path)
    code = path.suffix in tree.CODE
    content = tree.text(path)
    if path.suffix == ".hpp" and "#pragma once" not in content:
        yield f"{path}: no #pragma once"
    for number, line in enumerate(content.splitlines(), 1):
        if MARK.search(line):
            yield f"{path}:{number}: {MARK.search(line).group()} left over"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end"
        if code and CONDITION.match(line) and not TWIN.search(name) and name not in MAY_ASK:
            yield f"{path}:{number}: conditional compilation belongs in vendor twins: {line.strip()}"
        if code and "\t" in line:
            yield f"{path}:{number}: tab"


files = list(tree.sources(suffixes=tree.CODE | {".py", ".sh", ".cmake"}))
tree.finish([problem for path in files for problem in check(path)], len(files))
