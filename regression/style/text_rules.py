"""Rules on the text of code and scripts: no leftover marks, no #ifdef outside the vendor twins, #pragma once in headers,
no tabs in code, no trailing blanks; one word for each meaning; no code asks a tensor's name what it means (TensorSpec says it), and no code outside
the table of optimizers knows one of them by name."""
import re

import tree

MARK = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
HERE = tree.pathlib.Path("regression/style/text_rules.py")
WORDS = {  # that had several meanings, and what says each of them
    r"settle[sd]?|settling": "wait for, finish, complete or resolve", r"[Aa]like": "equal, the same", r"[Aa]new": "again",
    r"[Ll]ikewise": "also, in the same way", r"[Bb]eside": "next to, in addition to", r"(?:\w+[a-z])?Settings?": "Options",
    r"Lane": "Stream",
}
WORD = re.compile(r"\b(?:" + "|".join(f"({word})" for word in WORDS) + r")\b")
OTHERS_WORD = re.compile(r"InitializationSettings|KokkosSettings|tool_settings")
CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b")
TWIN = re.compile(r"_(host|cuda|onednn|openblas|mpi|nccl|uring)\.cpp$")
MAY_ASK = {"kernels/blas/exec.hpp",  # where types depend on the backend of this build
           "kernels/model/attention_product.hpp"}  # where they depend on the processor

KINDS = {name.replace("_", "-") for name in re.findall(r"  register_(\w+)\(\);$", tree.text("core/optimizer/register_optimizers.cpp"), re.MULTILINE)}
KIND_NAME = re.compile('"(' + "|".join(sorted(KINDS)) + ')"')
KEYS_OF_ONE = re.compile(r"\bas<\w+Options>\(\)")
NAME_TEST = re.compile(r"\b(spec|whole|local|tensor)\.name\.(find|rfind|contains|starts_with|ends_with)\(")
KNOWS_TENSORS = re.compile("^(kernels|core|parallel|app)/")  # io/hf translates between the names of others and ours


def structure_problems(path, number, line):
    if KNOWS_TENSORS.match(str(path)) and NAME_TEST.search(line):
        yield f"{path}:{number}: what a tensor is stands in its TensorSpec, not in its name: {line.strip()}"
    if path.parts[0] in tree.ROOMS and not path.is_relative_to("core/optimizer/methods") and KIND_NAME.search(line):
        yield f"{path}:{number}: optimizers are rows of a table (core/deck/kinds.hpp), not names: {line.strip()}"
    if path.parts[0] in tree.ROOMS and not path.is_relative_to("core/optimizer/methods") and KEYS_OF_ONE.search(line):
        yield f"{path}:{number}: the keys of one optimizer are known to it alone: {line.strip()}"


def check(path):
    name = str(path)
    code = path.suffix in tree.CODE
    content = tree.text(path)
    if path.suffix == ".hpp" and "#pragma once" not in content:
        yield f"{path}: no #pragma once"
    for number, line in enumerate(content.splitlines(), 1):
        if MARK.search(line):
            yield f"{path}:{number}: {MARK.search(line).group()} left over"
        word = WORD.search(OTHERS_WORD.sub("", line))
        if word and path != HERE:
            yield f"{path}:{number}: \"{word.group()}\": say {list(WORDS.values())[word.lastindex - 1]}"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end"
        if code and CONDITION.match(line) and not TWIN.search(name) and name not in MAY_ASK:
            yield f"{path}:{number}: conditional compilation belongs in vendor twins: {line.strip()}"
        if code:
            yield from structure_problems(path, number, line)
        if code and "\t" in line:
            yield f"{path}:{number}: tab"


files = list(tree.sources(suffixes=tree.CODE | {".py", ".sh", ".cmake"}))
tree.finish([problem for path in files for problem in check(path)], len(files))
