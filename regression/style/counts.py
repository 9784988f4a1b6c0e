#!/usr/bin/env python3
"""The product's source in numbers, a column for each tree: counts.py [REVISION...]; without one, the files as they lie here.

files, lines, median: sources and headers of the five rooms. names: distinct names of classes, structs, enums and functions (members
too) that headers declare. templates: lines that begin a template, by room. bytes only: distinct functions of headers by whose names
they only restate what other lines allocate (*_bytes, *_needs, *_elements, scratch_*). SOAP: the headers below
core/optimizer that methods/soap.hpp and its source lead to, with their sources (those that include one of them first); kernels, layout
and the deck are not followed. Once those in methods/, which are SOAP itself, and once all, with what optimizers share. over 50: functions longer than 50 lines, from the line of their name to the closing brace."""
import collections
import io
import re
import subprocess
import sys
import tarfile

ROOMS = ["app", "io", "parallel", "core", "kernels"]
BYTES_ONLY = re.compile(r"\b[a-z_0-9]+(?:_bytes|_needs|_elements)\(|\bscratch_[a-z_0-9]+\(")
CONTAINER = re.compile(r"^(?:inline )?(?:namespace|(?:template <.*> ?)?(?:struct|class|union|enum)\b|extern \"C\")")
TYPE = re.compile(r"\b(?:struct|class|union|enum class|enum) (?:alignas\([^)]*\) )?(\w+)(?: final)?(?: ?:[^:]|$| ?\{)")
NO_FUNCTION = {"if", "for", "while", "switch", "catch", "return", "decltype", "alignas", "static_assert", "requires", "sizeof", "noexcept"}
SOAP = "core/optimizer/methods/soap.hpp"
LONG = 50


def git(*command):
    return subprocess.run(["git", *command], capture_output=True, check=True).stdout


def read_tree(revision):
    """{path: text} of the rooms' sources and headers."""
    is_code = re.compile(r"\.(cpp|hpp)$")
    if revision is None:
        paths = git("ls-files", "--full-name", ":/app", ":/io", ":/parallel", ":/core", ":/kernels").decode().split("\n")
        root = git("rev-parse", "--show-toplevel").decode().strip()
        return {path: open(f"{root}/{path}", encoding="utf-8").read() for path in paths if is_code.search(path)}
    archive = tarfile.open(fileobj=io.BytesIO(git("archive", revision, "--", *(f":/{room}" for room in ROOMS))))
    return {one.name: archive.extractfile(one).read().decode() for one in archive.getmembers() if is_code.search(one.name)}


def bare(text):
    """Without comments, contents of literals and lines of the preprocessor; lines stay where they are."""
    def blank(found):
        return "\"\"" if found[0].startswith("\"") else "' '" if found[0].startswith("'") else "\n" * found[0].count("\n")
    text = re.sub(r'R"(\w*)\(.*?\)\1"', lambda found: '""' + "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.DOTALL)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE)


def statements(text):
    """(head, first line, last line, has it a body) of what stands in namespaces and classes."""
    depth, inside, head, begin, line, open_function = 0, 0, "", None, 1, None
    for letter in bare(text):
        if letter == "\n":
            line += 1
        if open_function:
            inside += {"{": 1, "}": -1}.get(letter, 0)
            if inside == 0:
                yield (*open_function, line, True)
                open_function, head, begin = None, "", None
            continue
        if letter in "{};":
            words = re.sub(r"\s+", " ", head).strip()
            words = re.sub(r"^(?:(?:public|private|protected) ?: ?)+", "", words)
            if letter == "{" and not CONTAINER.match(words):
                open_function, inside = (words, begin or line), 1
                continue
            if words:
                yield words, begin or line, line, letter == "{"
            head, begin = "", None
        else:
            head += letter
            if begin is None and not letter.isspace():
                begin = line


def function_name(words):
    """Of a declaration: the word before its first parenthesis that is none of an initial value."""
    call = re.match(r"(?:template <.*?> ?(?=[\w\[~]))?[^(=]*?(~?\b\w+) ?\(", words)
    return call[1] if call and call[1] not in NO_FUNCTION else None


def declared_names(files):
    names = set()
    for path, text in files.items():
        if path.endswith(".hpp"):
            for words, _, _, _ in statements(text):
                kind = TYPE.search(words) if CONTAINER.match(words) else None
                names.add(kind[1] if kind else function_name(words))
    return names - {None}


def long_functions(files):
    return [(path, function_name(words), last - first + 1) for path, text in files.items()
            for words, first, last, has_body in statements(text)
            if has_body and not CONTAINER.match(words) and function_name(words) and last - first + 1 > LONG]


def files_of(start, files):
    """Headers below core/optimizer that one leads to, and their sources: those that include one of them first."""
    sources = collections.defaultdict(list)
    for path, text in files.items():
        first = re.search(r'^#include "([^"]+)"', text, re.MULTILINE)
        if path.startswith("core/optimizer/") and path.endswith(".cpp") and first:
            sources[first[1]].append(path)
    seen, ahead = set(), [path for path in (start, start[:-4] + ".cpp") if path in files]
    while ahead:
        path = ahead.pop()
        if path not in seen:
            seen.add(path)
            ahead += [*re.findall(r'^#include "(core/optimizer/[^"]+)"', files.get(path, ""), re.MULTILINE), *sources[path]]
    return seen


def middle(numbers):
    return sorted(numbers)[(len(numbers) + 1) // 2 - 1]


def column(files):
    lengths = [text.count("\n") for text in files.values()]
    soap = files_of(SOAP, files)
    rows = {"files": len(files), "lines": sum(lengths), "median": middle(lengths), "names": len(declared_names(files))}
    for room in ROOMS:
        rows[f"templates in {room}"] = sum(len(re.findall(r"^template", text, re.MULTILINE)) for path, text in files.items() if path.startswith(room + "/"))
    rows["bytes only"] = len({name for path, text in files.items() if path.endswith(".hpp") for name in BYTES_ONLY.findall(text)})
    for what, part in (("methods", [path for path in soap if path.startswith("core/optimizer/methods/")]), ("all", soap)):
        rows[f"SOAP, {what}: headers"] = sum(path.endswith(".hpp") for path in part)
        rows[f"SOAP, {what}: lines"] = sum(files[path].count("\n") for path in part)
    rows[f"over {LONG}"] = len(long_functions(files))
    return rows


def main(revisions):
    columns = {revision or "here": column(read_tree(revision)) for revision in revisions or [None]}
    print(f"{'':26}" + "".join(f"{name[:12]:>14}" for name in columns))
    for row in next(iter(columns.values())):
        print(f"{row:26}" + "".join(f"{values[row]:14}" for values in columns.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
