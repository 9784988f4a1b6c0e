"""The Spack recipe against what CMake has and what the build links, for every combination of variants, without Spack.
BUILD_DIR and CMAKE come from the surroundings. Python 3.11, standard library alone."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest

sys.dont_write_bytecode = True
import fake_spack  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPO = ROOT / "app/spack_repo"
BUILD, CMAKE = pathlib.Path(os.environ["BUILD_DIR"]), os.environ["CMAKE"]
RECIPE, DIRECTIVES = fake_spack.read_recipe(REPO / "sestina/packages/sestina/package.py")
COMBINATIONS = list(fake_spack.combinations(DIRECTIVES))
ENVIRONMENTS = [ROOT / "spack.yaml", *sorted(REPO.glob("environments/*/spack.yaml"))]

# What a package brings to a build: how CMake asks for it, and the library that programs then need (none in the second list: headers or archives alone).
ASKED_AS = {"kokkos": "Kokkos", "fmt": "fmt", "spdlog": "spdlog", "nlohmann-json": "nlohmann_json", "cli11": "CLI11", "pkgconfig": "PkgConfig",
            "tomlplusplus": "tomlplusplus", "pcre2": "pcre2", "utf8proc": "utf8proc", "xxhash": "xxhash", "zstd": "zstd", "hdf5": "HDF5", "blas": "BLAS",
            "lapack": "LAPACK", "onednn": "DNNL", "liburing": "liburing", "mpi": "MPI", "cuda": "CUDAToolkit", "nccl": "NCCL", "zlib-api": "ZLIB", "googletest": "GTest",
            "benchmark": "benchmark", "python": "Python3"}
LINKED_AS = {"onednn": "libdnnl", "liburing": "liburing", "blas": "lib(open)?blas", "lapack": "lib(open)?(lapack|blas)", "tomlplusplus": "libtomlplusplus", "mpi": "libmpi",
             "hdf5": "libhdf5", "pcre2": "libpcre2", "utf8proc": "libutf8proc", "xxhash": "libxxhash", "zstd": "libzstd", "spdlog": "libspdlog",
             "fmt": "libfmt", "zlib-api": "libz\\."}
COMPILERS_OWN = r"lib(gomp|stdc\+\+|m|gcc_s|c|pthread|dl|rt|quadmath|gfortran|kokkos\w*)\.|ld-linux"
BY_SPACK = {"c", "cxx", "cmake", "ninja", "openblas"}  # tools, and a setting of the provider of blas


def cache():
    lines = (BUILD / "CMakeCache.txt").read_text().splitlines()
    return dict(re.match(r"([^:=]+):[^=]*=(.*)", line).groups() for line in lines if re.match(r"[A-Za-z]\w*:", line))


def arguments(chosen):
    recipe = RECIPE()
    recipe.spec = chosen
    return dict(argument[2:].split("=", 1) for argument in recipe.cmake_args() if argument)


def asked_by_cmake():
    """Names of packages in the project's CMake files, with the file."""
    found = {}
    for file in (ROOT / "cmake/SestinaDependencies.cmake", ROOT / "regression/CMakeLists.txt", ROOT / "regression/bench/CMakeLists.txt",
                 ROOT / "regression/cases/CMakeLists.txt"):
        for name in re.findall(r"(?:sestina_find|find_package|pkg_check_modules)\((\w+)", file.read_text()):
            found[name] = file.name
    return found


def environment_words(path):
    """The spec of sestina in an environment, as words."""
    return re.search(r"^    - sestina@main (.*)$", path.read_text(), re.MULTILINE)[1].split()


class Recipe(unittest.TestCase):
    def test_addresses_and_versions(self):
        self.assertEqual(RECIPE.git, ROOT.as_uri())
        listed = {d.words[0]: d.options for d in DIRECTIVES if d.kind == "version"}
        changes = (ROOT / "CHANGELOG.md").read_text()
        released = set(re.findall(r"^## (\d+\.\d+\.\d+)(?! \(unreleased\))", changes, re.MULTILINE))
        project = re.search(r"project\(Sestina VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
        # Released versions of the change log, the one that comes next, and the branch, which is preferred until then.
        self.assertEqual(set(listed), released | {project, "main"})
        self.assertEqual(listed["main"].get("preferred", False), project not in released)
        for version in set(listed) - {"main"}:
            self.assertEqual(listed[version]["tag"], f"v{version}")
        tags = subprocess.run(["git", "-C", ROOT, "tag", "--list", "v*"], capture_output=True, text=True).stdout.split()
        if tags:  # of a clone that has any
            self.assertLessEqual({f"v{version}" for version in released}, set(tags))
        self.assertEqual(RECIPE.homepage, ROOT.as_uri())
        self.assertEqual([d.words for d in DIRECTIVES if d.kind == "maintainers"], [("sestina-developers",)])
        self.assertEqual(RECIPE.url, f"{ROOT.as_uri()}/sestina-{project}.tar.gz")

    def test_options_exist_in_every_combination(self):
        self.assertGreater(len(COMBINATIONS), 100)
        text = (ROOT / "CMakeLists.txt").read_text()
        options = set(re.findall(r"option\((\w+)", text)) - {"SESTINA_ENABLE_FUZZING"}
        known = set(cache()) | {"Kokkos_ROOT", "CMAKE_CXX_STANDARD"}
        seen = set()
        for chosen in COMBINATIONS:
            given = arguments(chosen)
            self.assertLessEqual(set(given), known, chosen)
            seen |= set(given)
            for name in options & set(given):
                self.assertIn(given[name], ("ON", "OFF"), f"{name} of {chosen}")
            for name in ("mpi", "onednn", "tests", "tools"):
                self.assertEqual(given[f"SESTINA_ENABLE_{name.upper()}"], "ON" if chosen.values[name] else "OFF")
        self.assertLessEqual(options, seen, "options that no variant reaches")
        self.assertTrue(cache()["SESTINA_ENABLE_TOOLS"])

    def test_every_variant_has_an_effect(self):
        for d in (d for d in DIRECTIVES if d.kind == "variant"):
            name, values = d.words[0], d.options.get("values", (True, False))
            effects = {}
            for chosen in (c for c in COMBINATIONS if name in c.values):
                # benchmarks exists next to tests alone: only combinations that both have are compared.
                rest = str(sorted((k, str(v)) for k, v in chosen.values.items() if k != name and (k != "benchmarks" or v)))
                effects.setdefault(rest, {})[chosen.values[name]] = (str(arguments(chosen)), str(chosen.packages))
            self.assertTrue(effects, f"variant {name} is in no combination")
            for seen in effects.values():
                self.assertEqual(len(set(seen.values())), len(seen), f"variant {name} changes nothing")
            # A value that no combination has is refused, which is an effect too.
            refused = set(values) - {value for seen in effects.values() for value in seen}
            self.assertTrue(refused or len(values) == 1 or any(len(seen) > 1 for seen in effects.values()), name)

    def test_cuda_reaches_every_package(self):
        for chosen in (c for c in COMBINATIONS if c.values["cuda"]):
            wanted = f"cuda_arch={chosen.values['cuda_arch']}"
            self.assertIn(wanted, chosen.packages["kokkos"], chosen)
            self.assertEqual("nccl" in chosen.packages, bool(chosen.values.get("nccl")))
            if "nccl" in chosen.packages:
                self.assertIn(wanted, chosen.packages["nccl"])
        self.assertFalse(any("cuda" in c.packages or "nccl" in c.packages for c in COMBINATIONS if not c.values["cuda"]))


class Dependencies(unittest.TestCase):
    def test_are_those_that_cmake_asks_for(self):
        every = set().union(*(chosen.packages for chosen in COMBINATIONS)) - BY_SPACK
        self.assertLessEqual(every, set(ASKED_AS), "packages of the recipe that this test does not know")
        asked = asked_by_cmake()
        for package in sorted(every):
            self.assertIn(ASKED_AS[package], asked, f"{package} is a dependency, but CMake never asks for it")
        by_name = {name: package for package, name in ASKED_AS.items()}
        for name, file in asked.items():
            # Those are the compiler's, and for devices that the recipe has no variant for.
            if name not in ("OpenMP", "Threads", "KokkosKernels"):
                self.assertIn(by_name.get(name), every, f"{file} asks for {name}, which the recipe lacks")

    def built(self):
        """The combination that the build in BUILD_DIR is."""
        has = cache()
        for chosen in COMBINATIONS:
            given = arguments(chosen)
            if not chosen.values["cuda"] and all(has.get(k, "OFF") == v for k, v in given.items() if k.startswith("SESTINA_") or k == "BUILD_SHARED_LIBS"):
                return chosen
        return self.fail("the build is none that the recipe can make")

    def test_are_those_that_programs_link(self):
        chosen = self.built()
        if chosen.values["shared"]:
            self.skipTest("a shared build spreads its libraries")
        text = subprocess.run(["readelf", "-d", BUILD / "bin/sestina"], capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
        for package, pattern in LINKED_AS.items():
            linked = [library for library in needed if re.match(pattern, library)]
            self.assertEqual(package in chosen.packages, bool(linked), f"{package}: a dependency and not linked, or the other way round")
        for library in needed:
            self.assertTrue(re.match(COMPILERS_OWN, library) or any(re.match(p, library) for p in LINKED_AS.values()), library)


class Tried(unittest.TestCase):
    """Ranges against regression/spack/tried_versions.toml."""

    @classmethod
    def setUpClass(cls):
        table = tomllib.loads((pathlib.Path(__file__).parent / "tried_versions.toml").read_text())
        cls.tried = {}
        for row in table["tried"]:
            assert row["where"]
            cls.tried.setdefault(row["package"], []).append(row["version"])
        cls.provided = {row["package"]: row["by"] for row in table["provided"]}
        cls.asked = {}
        for d in (d for d in DIRECTIVES if d.kind == "depends_on"):
            name, parts = fake_spack.words_of(d.words[0])
            cls.asked.setdefault(name, set()).update(fake_spack.intervals(parts))

    def test_every_dependency_has_a_row(self):
        self.assertFalse(set(self.tried) & set(self.provided))
        self.assertEqual(set(self.asked), set(self.tried) | set(self.provided))
        for package, by in self.provided.items():
            self.assertEqual(self.asked[package], set(), f"{package} has no versions of its own")
            self.assertTrue(by)

    def test_ranges_begin_with_tried_versions(self):
        for package, tried in self.tried.items():
            self.assertTrue(self.asked[package], f"{package}: any version is admitted")
            for lower, upper in self.asked[package]:
                self.assertIn(lower, tried, f"{package}@{lower}:{upper} begins with a version that has no row")

    def test_no_row_is_refused(self):
        for package, versions in self.tried.items():
            for version in versions:
                self.assertTrue(any(fake_spack.admits(each, version) for each in self.asked[package]), f"{package} {version}")

    def test_environments_admit_no_older_kokkos(self):
        for path in ENVIRONMENTS:
            found = re.search(r'kokkos:\n      require: "@([\d.]+):', path.read_text())
            self.assertIn(found[1], self.tried["kokkos"], path)

    def test_ranges_are_read_as_spack_reads_them(self):
        two = fake_spack.intervals(["@2.6.3:2,3.2:", "cpu_runtime=omp"])
        self.assertEqual(two, [("2.6.3", "2"), ("3.2", "")])
        admitted = [v for v in ("2.5.2", "2.6.2", "2.6.3", "2.7.3", "3.0", "3.1", "3.2", "3.10") if any(fake_spack.admits(i, v) for i in two)]
        self.assertEqual(admitted, ["2.6.3", "2.7.3", "3.2", "3.10"])


class Citation(unittest.TestCase):
    """CITATION.cff, in the part of YAML that it uses: the keys that its format asks for, and what must equal other files."""

    def test_says_what_other_files_say(self):
        text = (ROOT / "CITATION.cff").read_text()
        keys = dict(re.findall(r"^([a-z-]+): *(.*)$", text, re.MULTILINE))
        project = re.search(r"project\(Sestina VERSION ([\d.]+)[^)]*DESCRIPTION \"([^\"]*)", (ROOT / "CMakeLists.txt").read_text())
        self.assertEqual(keys["cff-version"], "1.2.0")
        self.assertEqual(keys["version"].strip('"'), project[1])
        self.assertEqual(keys["license"], re.search(r'license\("(.*?)"\)', (REPO / "sestina/packages/sestina/package.py").read_text())[1])
        self.assertEqual(keys["type"], "software")
        self.assertTrue(keys["title"].strip('"').startswith("Sestina") and keys["message"])
        self.assertRegex(text, r'authors:\n  - name: "The Sestina developers"\n')
        self.assertLessEqual(set(keys), {"cff-version", "message", "type", "title", "abstract", "authors", "version", "license", "keywords"})


class Policies(unittest.TestCase):
    def test_each_has_a_row(self):
        text = (ROOT / "CONTRIBUTING.md").read_text()
        rows = re.findall(r"^\| (P\d) [^|]*\| ([^|]*) \| (.*) \|$", text, re.MULTILINE)
        self.assertEqual([row[0] for row in rows], [f"P{i}" for i in range(1, 10)])
        for name, holds, means in rows:
            self.assertIn(holds, ("yes", "partly", "not yet"), name)
            files = [ROOT / file for file in re.findall(r"`(?:\./)?([\w./-]+\.\w+)`", means)]
            self.assertTrue(files or holds != "yes" or "tree" in means, f"{name} names no file")
            for file in files:
                self.assertTrue(file.exists(), f"{name}: {file}")


class Environments(unittest.TestCase):
    def test_ask_for_variants_that_exist(self):
        names = {d.words[0] for d in DIRECTIVES if d.kind == "variant"} | {"cuda"}
        for path in ENVIRONMENTS:
            words = environment_words(path)
            wanted = {word.lstrip("+~"): word[0] == "+" for word in words if word[0] in "+~"}
            self.assertLessEqual(set(wanted), names, path)
            self.assertTrue(any(all(c.values.get(k, False) == v for k, v in wanted.items()) for c in COMBINATIONS), path)
            for link in re.findall(r"(?:sestina|path): (\.[./\w]*)$", path.read_text(), re.MULTILINE):
                self.assertTrue((path.parent / link).exists(), f"{path}: {link}")

    def test_of_cpus_is_what_the_suite_builds(self):
        """Option by option: so the build that these tests belong to is that environment's, made by plain CMake."""
        wanted = {d.words[0]: d.options["default"] for d in DIRECTIVES if d.kind == "variant"}
        wanted |= {word[1:]: word[0] == "+" for word in environment_words(ROOT / "spack.yaml")}
        chosen = next(c for c in COMBINATIONS if all(wanted[k] == v for k, v in c.values.items()))
        has = cache()
        for name, value in arguments(chosen).items():
            if name.startswith("SESTINA_") or name == "BUILD_SHARED_LIBS":
                self.assertEqual(has.get(name), value, name)
        self.assertIn("OPENMP", (pathlib.Path(has["Kokkos_DIR"]) / "KokkosConfigCommon.cmake").read_text())

    def test_container(self):
        path = REPO / "environments/container"
        text = (path / "spack.yaml").read_text()
        self.assertEqual(environment_words(path / "spack.yaml"), environment_words(ROOT / "spack.yaml"))
        template = (path / re.search(r"template: (\S+)", text)[1]).read_text()
        source = re.search(r"COPY \. (\S+)", template)[1]
        self.assertIn(f"path: {source}\n", text)
        self.assertIn(f"sestina: {source}/app/spack_repo/sestina\n", text)
        self.assertEqual(re.search(r"format: (\S+)", text)[1], "docker")


class OtherBuilds(unittest.TestCase):
    def test_shared_without_options(self):
        """Configured by plain CMake: everything off that may be off, shared libraries on."""
        chosen = next(c for c in COMBINATIONS if not c.values["cuda"] and c.values["shared"]
                      and not any(c.values[name] for name in ("mpi", "onednn", "tests", "tools")))
        given = {k: v for k, v in arguments(chosen).items() if k != "Kokkos_ROOT"}
        has = cache()
        # Descriptions for pkg-config as Spack's packages have them: toml++, which CMake installs there, has none.
        found = subprocess.run(["pkg-config", "--variable", "pc_path", "pkg-config"], capture_output=True, text=True, check=True).stdout.strip()
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as descriptions:
            for path in (path for place in found.split(":") for path in pathlib.Path(place).glob("*.pc") if path.stem != "tomlplusplus"):
                link = pathlib.Path(descriptions) / path.name
                link.is_symlink() or link.symlink_to(path)
            # As its CMake installs it.
            toml = pathlib.Path(descriptions) / "tomlplusplusConfig.cmake"
            toml.write_text("add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED)\n")
            words = [CMAKE, "-G", "Ninja", "-S", ROOT, "-B", folder, "-Wno-dev", f"-DKokkos_DIR={has['Kokkos_DIR']}", f"-Dtomlplusplus_DIR={descriptions}",
                     f"-DCMAKE_PREFIX_PATH={has.get('CMAKE_PREFIX_PATH', '')}", *(f"-D{k}={v}" for k, v in given.items())]
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=os.environ | {"PKG_CONFIG_LIBDIR": descriptions})
            self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-3000:])
            self.assertNotIn("not used by the project", done.stderr)
            rules = (pathlib.Path(folder) / "build.ninja").read_text()
        self.assertNotIn("libtomlplusplus", rules)
        for room in ("kernels", "core", "parallel", "io", "app"):
            self.assertIn(f"{room}/libsestina_{room}.so", rules)
        for absent in ("libmpi", "libdnnl", "unit_core", "sestina-replay"):
            self.assertNotIn(absent, rules)


if __name__ == "__main__":
    unittest.main()
