"""What takes memory says so once: its struct takes the pieces from a workspace, and whoever sizes one makes the same struct
of a workspace that counts (kernels/blas/workspace.hpp). So nobody adds up what takes of a workspace use, and functions of
headers that are named for bytes, needs or elements become no more."""
import re

import tree

NAMED = re.compile(r"\b[a-z_0-9]+(?:_bytes|_needs|_elements)\(|\bscratch_[a-z_0-9]+\(")
MOST = 44
ADDS = re.compile(r"\bWorkspace<\w+>::(?:template )?bytes<|\bW::(?:template )?bytes<")
MAY_ADD = {"kernels/blas/workspace.hpp", "kernels/model/attention_blocked.hpp"}  # where slots of workers begin

problems, names = [], set()
files = list(tree.sources(folders=tree.ROOMS))
for path in files:
    content = tree.text(path)
    if path.suffix == ".hpp":
        names.update(NAMED.findall(content))
    if str(path) in MAY_ADD:
        continue
    for number, line in enumerate(content.splitlines(), 1):
        if ADDS.search(line):
            problems.append(f"{path}:{number}: bytes are added up by hand: declare a struct of the pieces: {line.strip()}")
if len(names) > MOST:
    problems.append(f"{len(names)} names of functions restate bytes, {MOST} are allowed: {', '.join(sorted(names))}")
print(f"{len(names)} names of functions in headers restate bytes")
tree.finish(problems, len(files))
