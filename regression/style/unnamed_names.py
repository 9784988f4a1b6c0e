"""A name in an unnamed namespace of a source is one name in its room, and in the tests of its room: builds that compile
several sources as one (CMAKE_UNITY_BUILD: all presets but cpu-debug and cuda) put any two sources of a target together, and
which ones changes with every source that is added (in kernels for nvcc and under sanitizers alone, twins apart).
Functions may overload: theirs is the name with its parameters."""
import re

import tree

ROOMS = ["app", "io", "parallel", "core", "kernels"]
TESTS = ["regression/unit/" + name for name in ("app", "core", "io", "kernels", "mpi", "parallel", "step", "support")]
NEVER = re.compile(r"sestina_never_unity\(([^)]*)\)")
APART = re.compile(r"^kernels/.*_(host|cuda|none|onednn|openblas|avx2|avx512|amx)\.cpp$")  # kernels/CMakeLists.txt
TYPE = re.compile(r"^(?:template <.*>\n)?(?:struct|class|enum(?: class)?|union) (\w+)", re.MULTILINE)
ALIAS = re.compile(r"^(?:template <.*>\n)?using (\w+ = [^;]+);", re.MULTILINE)  # the same twice is no error
USING = re.compile(r"^using ([\w:]+)::(\w+);", re.MULTILINE)  # an alias by the same name
VALUE = re.compile(r"^(?:static |inline |constexpr |const |constinit |thread_local )+[\w:<>, *&]+?[ *&](\w+)(?:\[\w*\])*(?: =|\{|;)",
                   re.MULTILINE)
FUNCTION = re.compile(r"^(?!return|else|using|struct|class|enum)(?:template <.*>\n)?[A-Za-z_][\w:<>,*& ]*[ *&>](\w+)\(([^{};]*)\)[^(){};]*\{",
                      re.MULTILINE)


def alone():
    """Sources that no other is compiled with."""
    for room in ROOMS:
        listing = tree.ROOT / room / "CMakeLists.txt"
        for found in NEVER.finditer(listing.read_text(encoding="utf-8")):
            yield from (f"{room}/{name}" for name in found.group(1).split())


def unnamed(content):
    """The parts of a source in unnamed namespaces that begin in the first column, without what is indented."""
    for part in re.findall(r"^namespace \{\n(.*?)^\}  // namespace$", content, re.MULTILINE | re.DOTALL):
        yield re.sub(r"//[^\n]*", "", part)


def parameter_types(text):
    """The parameters without their names and defaults."""
    text = re.sub(r"\s*=[^,]*", "", re.sub(r"\s+", " ", text))
    return ",".join(re.sub(r"([*&> ])\w+$", r"\1", one.strip()).strip() for one in text.split(","))


def names(content):
    for part in unnamed(content):
        for rule in (TYPE, ALIAS, VALUE):
            for found in rule.finditer(part):
                yield found.group(1)
        for found in USING.finditer(part):
            yield f"{found.group(2)} = {found.group(1)}::{found.group(2)}"
        for found in FUNCTION.finditer(part):
            yield f"{found.group(1)}({parameter_types(found.group(2))})"


def check(files):
    owners = {}
    for path in files:
        for name in set(names(tree.text(path))):
            owners.setdefault((path.parts[0] if path.parts[0] in ROOMS else path.parent, name.split(" = ")[0]), []).append((path, name))
    for (_, name), places in sorted(owners.items(), key=str):
        paths = [path for path, _ in places]
        same_alias = " = " in places[0][1] and len({text for _, text in places}) == 1
        if len(paths) > 1 and not same_alias and not all(tree.TWINS.search(path.name) for path in paths):
            yield f"{paths[0]}: {name} stands in an unnamed namespace of {', '.join(map(str, paths[1:]))} too"


def found_in(content):
    return sorted(names("namespace {\n" + content + "\n}  // namespace\n"))


assert found_in("constexpr std::size_t kA = 1U;\nstruct B {\n  int c;\n};\nusing D = int;\nusing e::F;\nint f(const int* x, E e = 1) {\n}") == \
    ["B", "D = int", "F = e::F", "f(const int*,E)", "kA"], "this script finds its own examples"
ALONE = set(alone())
files = [path for path in tree.sources(folders=ROOMS + TESTS, suffixes={".cpp"}) if str(path) not in ALONE and not APART.search(str(path))]
tree.finish(list(check(files)), len(files))
