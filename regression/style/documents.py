"""What the documents name is there: every path in backticks or behind a link, every label of CTest and preset of CMake, and in README.md's
life of a gradient every function in its file; the promise about bits comes first, with a test for each row."""
import ast
import fnmatch
import json
import re

import tree

DOCUMENTS = [path for path in sorted(tree.ROOT.rglob("*.md"))
             if not {"build", "reports", ".git"} & set(path.relative_to(tree.ROOT).parts) and path.name != "CHANGELOG.md"]
# What a build, an installation or a run makes, and words with a slash that are no paths.
MADE = re.compile(r"(build|runs|checkpoints|failed|jobs|lib|bin|DIR|PREFIX|/path/to|/sys|/nvme|/tmp|/optimizer|/model|/run|/hyper)(/|$)|\.bin/|</s>$|~/")
INSTALLED = {"share/sestina/inputs": "inputs", "share/sestina/slurm": "app/slurm",  # cmake/SestinaInstall.cmake
             "share/sestina/examples": "regression/install"}
SOURCE_NAME = re.compile(r"[\w*<>{},-]+\.(cpp|hpp|py|sh|cmake|sbatch)$")
PATH = re.compile(r"[\w.~*<>{},+/-]+$")
NAMES = {path.name for folder in (*tree.ROOMS, "cmake", "regression") for path in (tree.ROOT / folder).rglob("*")} | {"setup.sh"}
LIFE = "## The life of a gradient"
PROMISE = "## The same bits on any layout"


def globs(word):
    """`<name>` stands for any name, `{hpp,cpp}` for each of these."""
    word = re.sub(r"<\w+>", "*", word)
    braces = re.search(r"\{([^{}]*)\}", word)
    if braces is None:
        return [word]
    return [found for one in braces[1].split(",") for found in globs(word[:braces.start()] + one + word[braces.end():])]


def exists(folder, word):
    return all(pattern and any(folder.glob(pattern)) for pattern in globs(word.strip("/")))


def is_there(word, document):
    if MADE.match(word):
        return True
    if SOURCE_NAME.match(word):
        return all(fnmatch.filter(NAMES, pattern) for pattern in globs(word))
    for prefix, source in INSTALLED.items():
        word = re.sub(f"^{prefix}(?=/|$)", source, word)
    places = [tree.ROOT, document.parent, *(tree.ROOT / room for room in tree.ROOMS)]
    return any(exists(place, name) for place in places for name in {word, word.removeprefix("sestina/")})


def named(line, fenced):
    """Paths that a line of a document names. In blocks of commands a word is one where it begins with a folder of ours."""
    if fenced:
        ours = {path.name for path in tree.ROOT.iterdir() if path.is_dir()} - {"build", "runs"}
        yield from (word for word in re.split(r"[\s=\"'\[\]]+", line) if PATH.match(word) and word.split("/")[0] in ours and "/" in word)
        return
    for code in re.findall(r"`([^`]+)`", line):
        for word in re.sub(r"<[^<>]*>", "<name>", code).split():
            if PATH.match(word) and re.search(r"\w", word) and ("/" in word or SOURCE_NAME.match(word)):
                yield word


def path_problems(document, content):
    fenced = False
    for number, line in enumerate(content.splitlines(), 1):
        where = f"{document.relative_to(tree.ROOT)}:{number}"
        if line.startswith("```"):
            fenced = not fenced
        for word in named(line, fenced):
            if not is_there(word, document):
                yield f"{where}: no such file: {word}"
        for target in re.findall(r"\]\(([^)\s#]+)\)", line):
            if "://" not in target and not (document.parent / target).exists():
                yield f"{where}: a link to nothing: {target}"


def label_words():
    texts = [path.read_text() for name in ("CMakeLists.txt", "case.toml") for path in (tree.ROOT / "regression").rglob(name)]
    words = {word for text in texts for list_ in re.findall(r'LABELS \\?"([\w;]+)|^labels *= *\[(.*)\]|^set\(labels "([\w;]+)', text, re.MULTILINE)
             for part in list_ for word in re.findall(r"\w+", part)}
    return words | {path.name for path in (tree.ROOT / "regression/unit").iterdir() if path.is_dir()}  # unit_program(label ...)


def word_problems(document, content, labels, presets):
    name = document.relative_to(tree.ROOT)
    for word in re.findall(r"-L(?:E)? +(?:LABEL|'[^']*'|(\w+))", content):
        if word and word not in labels:
            yield f"{name}: no test has the label {word}"
    for preset in re.findall(r"--preset (\w[\w-]*)", content):
        if preset not in presets:
            yield f"{name}: no preset {preset} in CMakePresets.json"
    for row in re.findall(r"^\| \w[^|]*\|[^|]*\| ([\w, ]+) \|[^|]*\|$", content, re.MULTILINE) if str(name) == "regression/README.md" else []:
        for word in re.findall(r"\w+", row):
            if word not in labels | {"label"}:
                yield f"{name}: no test has the label {word}"


def defines(path, function):
    """A body after the parameters: a call is no definition."""
    return re.search(rf"\b{function}\((?:[^;{{}}()]|\((?:[^()]|\([^()]*\))*\))*\)(?: const| override| final| noexcept)*\s*\{{", tree.text(path))


def life_problems(content):
    """Rows | what happens | `function`, ... | [file](file) |; and everywhere: `function` of [...](file)."""
    rows = re.findall(r"^\| [^|]+ \| (`[^|]+) \| \[([^\]]+)\]\(\2\) \|$", content.split(LIFE)[-1].split("\n## ")[0], re.MULTILINE)
    if LIFE not in content or len(rows) < 10:
        yield f"README.md: \"{LIFE[3:]}\" has {len(rows)} rows, not ten"
    for functions, path in [*rows, *re.findall(r"(`\w+`) of \[[^\]]+\]\(([^)]+)\)", content)]:
        for function in re.findall(r"`(\w+)`", functions):
            if not (tree.ROOT / path).is_file() or not defines(path, function):
                yield f"README.md: {path} defines no {function}"


def promise_problems(content):
    """The promise about bits comes first, and each row of it links to a test that compares bits."""
    if re.search(r"^## .*", content, re.MULTILINE)[0] != PROMISE:
        yield f"README.md: \"{PROMISE[3:]}\" is not its first section"
    rows = re.findall(r"^\| [^|]+ \| [^|]*same bits[^|]* \|[^|]*\| ([^|]+) \|$", content.split(PROMISE)[-1].split("\n## ")[0], re.MULTILINE)
    if len(rows) < 10:
        yield f"README.md: \"{PROMISE[3:]}\" has {len(rows)} rows that promise bits, not ten"
    for target in [link for row in rows for link in re.findall(r"\]\(([^)]+)\)", row) or ["no link"]]:
        path = tree.ROOT / target / "case.toml" if (tree.ROOT / target).is_dir() else tree.ROOT / target
        if not path.is_file() or not re.search(r"^\[\[same\]\]|EXPECT_EQ|expect_same", path.read_text(), re.MULTILINE):
            yield f"README.md: a promise about bits whose test compares none: {target}"


def tour_problems(content):
    """The tour names the sub-folders in the order in which they may include one another (rooms.py)."""
    tour = content.split("## Tour of the files")[-1].split("\n## ")[0]
    order_of = ast.literal_eval(re.search(r"^INNER = (\{.*?^\})", tree.text("regression/style/rooms.py"), re.MULTILINE | re.DOTALL)[1])
    for folder, order in order_of.items():
        row = next((line for line in tour.splitlines() if f"]({folder})" in line), "")
        places = [tour.find(f"]({folder}/{name})") if f"]({folder}/{name})" in tour else row.find(f"`{name}`") for name in order]
        if -1 in places or places != sorted(places):
            yield f"README.md: the tour does not name {folder}: {' -> '.join(order)}, in this order"


# The rules find what they are for.
assert is_there("core/optimizer/methods/<name>.{hpp,cpp}", tree.ROOT / "README.md")
assert not is_there("core/optimizer/methods/<name>.{hpp,cu}", tree.ROOT / "README.md")
assert not is_there("core/no_such_folder", tree.ROOT / "README.md") and not is_there("no_such_source.cpp", tree.ROOT / "README.md")
assert list(named("see `core/a.cpp` and `-L quick`", False)) == ["core/a.cpp"]
assert defines("parallel/step/executor.cpp", "run_actions") and not defines("parallel/step/executor.cpp", "accept")

problems = []
known_labels = label_words()
known_presets = {preset["name"] for preset in json.loads(tree.text("CMakePresets.json"))["configurePresets"]}
for one in DOCUMENTS:
    words_of_it = one.read_text(encoding="utf-8")
    problems += [*path_problems(one, words_of_it), *word_problems(one, words_of_it, known_labels, known_presets)]
problems += [*promise_problems(tree.text("README.md")), *tour_problems(tree.text("README.md")), *life_problems(tree.text("README.md"))]
tree.finish(problems, len(DOCUMENTS))
