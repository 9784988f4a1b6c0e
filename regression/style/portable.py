"""Code for every compiler and processor: nothing that g++ alone knows stands outside the vendor twins; what x86 alone has
stands there or inside an #if that asks for x86, and in CMake's files its options inside an if() that does. Where clang and a
cross compiler are not installed, this is what notices."""
import re
import sys

import tree

TWIN = re.compile(r"_(host|cuda|onednn|openblas|mpi|nccl|uring)\.cpp$|_(avx2|avx512|amx)\.[ch]pp$")
GCC_ONLY = re.compile(
    r"__builtin_shuffle\b|__BIGGEST_ALIGNMENT__|#\s*pragma\s+GCC\s+(optimize|target|push_options|pop_options|ivdep|unroll)\b"
    r"|__attribute__\s*\(\(.*\b(optimize|noipa|no_reorder|noclone)\b|gnu::(no_sanitize|optimize|noipa|no_reorder|noclone)\b"
    r"|\b__builtin_(apply|apply_args|call_with_static_chain|goacc_\w+|has_attribute|extend_pointer)\b")
X86_CODE = re.compile(
    r"#\s*include\s*<(\w*mmintrin|x86\w*intrin|ia32intrin|cpuid|immintrin)\.h>|\b_mm\d*_\w+\(|\b__m(64|128|256|512)[dih]?\b"
    r"|__builtin_ia32_|__builtin_cpu_(supports|is|init)\b|target\(\"(avx|sse|fma|arch=)")
X86_OPTION = re.compile(r"-m(avx|s?sse|fma|f16c|bmi|amx|prefer-vector-width|tune=|arch=(x86|zn|[a-z]+(lake|well|bridge)))")
X86_CONDITION = re.compile(r"^\s*#\s*(if|ifdef|elif)\b.*\b(__x86_64__|__SSE\w*__|__AVX\w*__)")
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")
X86_IF = re.compile(r"CMAKE_(SYSTEM|HOST_SYSTEM)_PROCESSOR.*x86_64")
COMMAND = re.compile(r"^\s*(if|elseif|else|endif)\s*\((.*)")


def code_problems(name, content):
    """Comments are left out; they may say why."""
    if TWIN.search(name):
        return
    guarded = []  # for each open #if: does the branch that we are in ask for x86?
    for number, line in enumerate(content.splitlines(), 1):
        code = line.split("//")[0]
        condition = CONDITION.match(code)
        if condition:
            if not condition[1].startswith("if") and guarded:
                guarded.pop()
            if condition[1] != "endif":
                guarded.append(bool(X86_CONDITION.match(code)) and "!" not in code)
        for pattern, what, allowed in ((GCC_ONLY, "g++ alone knows", False), (X86_CODE, "x86 alone has", any(guarded))):
            found = pattern.search(code)
            if found and not allowed:
                yield f"{name}:{number}: {what} {found.group()}: it belongs in a twin"


def cmake_problems(name, content):
    guarded = []  # for each open if(): does the branch that we are in name x86?
    for number, line in enumerate(content.splitlines(), 1):
        code = line.split("#")[0]
        command = COMMAND.match(code)
        if command:
            if command[1] != "if":
                guarded.pop()
            if command[1] != "endif":
                guarded.append(bool(X86_IF.search(command[2])) and "NOT CMAKE_" not in command[2])
        found = X86_OPTION.search(code)
        if found and not any(guarded):
            yield f"{name}:{number}: {found.group()} is an option of x86: ask for CMAKE_SYSTEM_PROCESSOR first"


def cmake_files():
    yield tree.ROOT / "CMakeLists.txt"
    for folder in (*tree.ROOMS, "cmake", "regression"):
        for path in sorted((tree.ROOT / folder).rglob("*")):
            if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
                yield path


def found_in(rule, name, texts):
    return [any(rule(name, text)) for text in texts]


def rules_find():
    """The rules on texts that they must find and on texts that they must not."""
    bad = ["rows[i] = __builtin_shuffle(a, b, low);", '#pragma GCC optimize("O3")', '[[gnu::optimize("O3")]] void f();',
           "#include <immintrin.h>", "__m256 v = _mm256_add_ps(a, b);", 'if (__builtin_cpu_supports("avx2")) return;',
           "int bytes = __BIGGEST_ALIGNMENT__;", "#if defined(__x86_64__)\n#else\n#include <immintrin.h>\n#endif"]
    good = ["v = __builtin_shufflevector(a, b, 0, 2);", "[[gnu::noinline]] void f();", "#pragma omp simd",
            "int x;  // as _mm_add_ps(", '#if defined(__x86_64__)\nif (__builtin_cpu_supports("fma")) return;\n#endif']
    option = "target_compile_options(x PRIVATE -mprefer-vector-width=512)"
    guard = 'if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")'
    bad_cmake = [option, f"{guard}\nelse()\n{option}\nendif()", f"{guard}\nendif()\n{option}"]
    good_cmake = [f"{guard}\n{option}\nendif()", f"{guard}\nif(A)\n{option}\nendif()\nendif()",
                  "add_compile_options(-march=${SESTINA_MARCH})"]
    return (all(found_in(code_problems, "a.cpp", bad)) and not any(found_in(code_problems, "a_host.cpp", bad))
            and not any(found_in(code_problems, "a.cpp", good)) and all(found_in(cmake_problems, "a", bad_cmake))
            and not any(found_in(cmake_problems, "a", good_cmake)))


if not rules_find():
    sys.exit("the rules of this script do not find what they are for")
problems, checked = [], 0
for path in tree.sources():
    problems += code_problems(str(path), tree.text(path))
    checked += 1
for path in cmake_files():
    problems += cmake_problems(str(path.relative_to(tree.ROOT)), tree.text(path))
    checked += 1
tree.finish(problems, checked)
