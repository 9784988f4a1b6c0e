"""A function template of a header that holds a KOKKOS_LAMBDA is static (kernels/blas/matrix_passes.hpp says why)."""
import re

import tree

FUNCTION = re.compile(r"^(?P<declared>(?:template <[^\n]*>\n)?(?:static |inline |constexpr )*[A-Za-z_][\w:<>, ]*[ >*&]\w+)\(",
                      re.MULTILINE)


def check(path):
    content = tree.text(path)
    if "namespace {\n" in content:
        return
    for found in re.finditer(r"\bKOKKOS_(?:CLASS_)?LAMBDA\b", content):
        line = content.count("\n", 0, found.start()) + 1
        if content[: found.start()].rsplit("\n", 1)[-1].lstrip().startswith("//"):
            continue
        around = [f for f in FUNCTION.finditer(content) if f.start() < found.start()]
        if not around or not re.search(r"^(?:inline )?static ", around[-1]["declared"], re.MULTILINE):
            name = around[-1]["declared"].split()[-1] if around else "?"
            yield f"{path}:{line}: {name} holds a KOKKOS_LAMBDA and is not static"


files = [path for path in tree.sources(folders=tree.ROOMS) if path.suffix == ".hpp"]
tree.finish([problem for path in files for problem in check(path)], len(files))
