"""A type of a namespace has one definition in the whole program: of two structs by one name the linker keeps the functions of
either, such as a vector's growth, and the other's objects are written past their end. No compiler says so as long as no source
sees both."""
import re

import tree

UNNAMED = re.compile(r"^namespace \{\n.*?^\}  // namespace$", re.MULTILINE | re.DOTALL)
NAMESPACE = re.compile(r"^(?:inline )?namespace ([\w:]+) \{$", re.MULTILINE)
TYPE = re.compile(r"^(?:template <[^{]*>\n)?(?:struct|class|enum(?: class)?|union) (?:\[\[\w+\]\] )?(\w+)(?: final)?(?: : [^{;]*)? \{", re.MULTILINE)


def types(content):
    """The types that a file defines in the first column, with the innermost namespace above them."""
    content = UNNAMED.sub("", content)
    spaces = [(found.start(), found.group(1)) for found in NAMESPACE.finditer(content)]
    for found in TYPE.finditer(content):
        above = [name for start, name in spaces if start < found.start()]
        yield f"{above[-1] if above else ''}::{found.group(1)}"


def check(files):
    owners = {}
    for path in files:
        if not tree.TWINS.search(path.name):
            for name in types(tree.text(path)):
                owners.setdefault(name, []).append(str(path))
    for name, paths in sorted(owners.items()):
        if len(paths) > 1:
            yield f"{paths[0]}: {name} is defined in {', '.join(paths[1:])} too"


assert list(types("struct A;\nnamespace a::b {\nnamespace {\nstruct B {\n};\n}  // namespace\ntemplate <class T>\nstruct C : D {\n  struct E {\n};\n"
                  "enum class F : int { g };\n")) == ["a::b::C", "a::b::F"], "this script finds its own examples"
files = list(tree.sources(folders=[*tree.ROOMS, "regression/unit"]))
tree.finish(list(check(files)), len(files))
