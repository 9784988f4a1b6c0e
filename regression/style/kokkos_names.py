"""What Kokkos deprecated from 4.0 on, or removed in 5, is not used, so that one spelling compiles with 4.7 and 5, with
their deprecated code and without. By Kokkos' CHANGELOG.md, 4.0.0 to 5.2.0. Not every change can be seen in the text: the
compilers of such builds tell the rest (regression/reports says which were tried)."""
import re

import tree

# Since which version, what it is, and what to write instead.
NAMES = [
    ("4.0", r"\bCudaUVMSpace::available\b", "it is always there"),
    ("4.0", r"\bKOKKOS_ACTIVE_EXECUTION_MEMORY_SPACE_\w+", "KOKKOS_IF_ON_HOST, KOKKOS_IF_ON_DEVICE"),
    ("4.0", r"(\.|::)concurrency\(", "threads_of(exec): a static one speaks of the default instance"),
    ("4.2", r"\bKokkos::vector\b|\bKokkos_Vector\.hpp\b", "std::vector or a View"),
    ("4.3", r"\bin_parallel\(", "KOKKOS_IF_ON_DEVICE"),
    ("4.3", r"\bdetect_device_(count|arch)\(", "Kokkos::num_devices()"),
    ("4.3", r"\bKokkos::Experimental::swap\b", "Kokkos::kokkos_swap"),
    ("4.4", r"\b(is_layouttiled|layout_iterate_type_selector)\b", "nothing"),
    ("4.4", r"\bKokkos::pair<[^,<>]*, void>", "the element itself"),
    ("4.5", r"\bKokkos::(\w*TaskScheduler\w*|TaskPriority|TaskSingle|TaskTeam|task_spawn|host_spawn|respawn|\w*Future)\b", "nothing: tasks are gone"),
    ("4.5", r"\batomic_(query_version|assign|compare_exchange_strong|increment|decrement)\b", "atomic_store, atomic_compare_exchange, atomic_inc, atomic_dec"),
    ("4.5", r"\bKokkos::\w+(\(\)\.|::)is_asynchronous\b", "nothing"),
    ("4.6", r"\bStaticCrsGraph\b|\bKokkos_StaticCrsGraph\.hpp\b", "KokkosSparse::StaticCrsGraph"),
    ("4.6", r"\bnative_simd(_mask)?\b|\bsimd_abi\b", "simd<T>, basic_simd"),
    ("4.6", r"\.[dh]_view\b", "view_device(), view_host()"),
    ("4.7", r"\bKOKKOS_MEMORY_ALIGNMENT(_THRESHOLD)?\b", "nothing"),
    ("4.7", r"\bMemoryManaged\b", "MemoryTraits<>"),
    ("4.7", r"\bKOKKOS_NONTEMPORAL_PREFETCH_\w+", "nothing"),
    ("5.0", r"\bKOKKOS_ATTRIBUTE_NODISCARD\b", "[[nodiscard]]"),
    ("5.0", r"\b(Owning|Observing)RawPtr\b", "a pointer"),
    ("5.0", r"\bHostMirror\b", "host_mirror_type"),
    ("5.0", r"::(scalar_array_type|array_type)\b", "data_type, type"),
    ("5.0", r"\b(const_)?where_expression\b", "simd_select"),
]
RULES = [(since, re.compile(pattern), instead) for since, pattern, instead in NAMES]
MAY_ASK = {"kernels/blas/exec.hpp", "regression/unit/allocation_counter.cpp"}  # what threads_of and the handles of policies rest on

# From 5.0 on a View of a pointer and extents, or of a label and extents, is made by name: a list in braces is none.
RETURNS_VIEW = re.compile(r"^[ \t]*(?:(?:static|inline|constexpr) )*(?:Matrix|Vector|Kokkos::View)<[^;{}]*>[&*]? [\w:<>, ]*\([^;{}]*\)(?: const)? \{",
                          re.MULTILINE)
LIST = re.compile(r"return \{(?!\})")


def body(content, begin):
    """From after an opening brace to its closing one."""
    depth = 1
    for at in range(begin, len(content)):
        depth += {"{": 1, "}": -1}.get(content[at], 0)
        if depth == 0:
            return content[begin:at]
    return content[begin:]


def check(name, content):
    for number, line in enumerate(content.splitlines(), 1):
        code = line.split("//", 1)[0]
        for since, pattern, instead in RULES:
            if pattern.search(code) and name not in MAY_ASK:
                yield f"{name}:{number}: {pattern.search(code)[0]}: deprecated by Kokkos {since}; instead: {instead}"
    for head in RETURNS_VIEW.finditer(content):
        found = LIST.search(body(content, head.end()))
        if found:
            number = content.count("\n", 0, head.end() + found.start()) + 1
            yield f"{name}:{number}: a View out of a list in braces: since Kokkos 5.0 its constructors are explicit"


def problems_in(text):
    return len(list(check("example.hpp", text)))


assert problems_in("  Vector<A, Exec> master(std::size_t i) const {\n    if (i) return {};\n    return {data_ + i, n};\n  }\n") == 1
assert problems_in("Matrix<T, Exec> all(int i) {\n  return Matrix<T, Exec>(p, i, i);\n}\nPlace at() { return {1, 2}; }\n") == 0
assert problems_in("typename V::HostMirror m;  // HostMirror\nint n = exec.concurrency();\n") == 2
files = list(tree.sources())
tree.finish([problem for path in files for problem in check(str(path), tree.text(path))], len(files))
