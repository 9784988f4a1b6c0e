"""Which Kokkos is taken, by CMake (cmake/SestinaDependencies.cmake, which the installed package includes too) and by setup.sh: 4.7 and
anything newer. Each is offered here as a package configuration alone, with the version file that Kokkos 4.7 and 5.0 have.
CMAKE comes from the surroundings. Python 3.11, standard library alone."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = os.environ["CMAKE"]
# Where the machine has a Kokkos of its own, it is not looked for.
ALONE = [CMAKE, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}", f"-DCMAKE_CXX_COMPILER={shutil.which('c++')}",
         *(f"-DCMAKE_FIND_USE_{place}=OFF" for place in ("CMAKE_SYSTEM_PATH", "SYSTEM_ENVIRONMENT_PATH", "PACKAGE_REGISTRY"))]
TAKEN, REFUSED = ("4.7.0", "4.7.01", "5.0.0", "5.0.2", "5.1.1", "5.2.0"), ("3.7.2", "4.6.02", "4.6.99")

MAKE_PACKAGE = """include(CMakePackageConfigHelpers)
write_basic_package_version_file({folder}/KokkosConfigVersion.cmake VERSION {version} COMPATIBILITY AnyNewerVersion ARCH_INDEPENDENT)
file(WRITE {folder}/KokkosConfig.cmake "set(Kokkos_DEVICES {devices})\\n")
"""

# Nothing but Kokkos is looked for.
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES NONE)
macro(sestina_find package)
  if("${{package}}" STREQUAL Kokkos)
    find_package(${{package}} ${{ARGN}} REQUIRED)
  endif()
endmacro()
macro(pkg_check_modules)
endmacro()
include({root}/cmake/SestinaDependencies.cmake)
message(STATUS "taken: ${{Kokkos_VERSION}}")
"""


class Versions(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="sestina-kokkos-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def package(self, version, devices="SERIAL OPENMP"):
        """A prefix with nothing but this version's package configuration."""
        prefix = self.folder / f"{version}-{devices.replace(' ', '-')}"
        folder = prefix / "lib/cmake/Kokkos"
        folder.mkdir(parents=True)
        script = self.folder / "package.cmake"
        script.write_text(MAKE_PACKAGE.format(folder=folder, version=version, devices=devices))
        subprocess.run([CMAKE, "-P", script], check=True)
        return prefix

    def surroundings(self, *prefixes):
        """With these packages alone: no hint leads to another Kokkos."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("Kokkos")}
        return kept | {"CMAKE_PREFIX_PATH": ":".join(map(str, prefixes))}

    def configured(self, *prefixes):
        source = self.folder / "project"
        source.mkdir(exist_ok=True)
        (source / "CMakeLists.txt").write_text(PROJECT.format(root=ROOT))
        words = [*ALONE, "--fresh", "-S", source, "-B", self.folder / "build"]
        return subprocess.run(words, capture_output=True, text=True, env=self.surroundings(*prefixes))

    def probed(self, prefix, device="OPENMP"):
        """What the function of setup.sh answers."""
        function = re.search(r"^installed_kokkos\(\) \{.*?^\}", (ROOT / "setup.sh").read_text(), re.MULTILINE | re.DOTALL)[0]
        call = ["bash", "-euc", f"cmake() {{ command {shlex.join(ALONE)} \"$@\"; }}\n{function}\ninstalled_kokkos {device}"]
        return subprocess.run(call, env=self.surroundings(prefix)).returncode == 0

    def test_cmake(self):
        for version in TAKEN:
            done = self.configured(self.package(version))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"taken: {version}\n", done.stdout)
        for version in REFUSED:
            done = self.configured(self.package(version))
            self.assertNotEqual(done.returncode, 0, version)
            self.assertIn('compatible with requested version "4.7"', " ".join(done.stderr.split()))
            self.assertIn(f"version: {version}", done.stderr)

    def test_an_older_one_in_front_is_passed_over(self):
        done = self.configured(self.package("4.6.02"), self.package("5.1.1"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("taken: 5.1.1\n", done.stdout)

    def test_setup(self):
        for version in ("4.7.0", "5.1.1"):
            self.assertTrue(self.probed(self.package(version)), version)
        self.assertFalse(self.probed(self.package("4.6.02")))

    def test_setup_asks_for_the_device(self):
        self.assertFalse(self.probed(self.package("5.0.2", "SERIAL")))
        with_cuda = self.package("5.0.2", "SERIAL OPENMP CUDA")
        self.assertFalse(self.probed(with_cuda), "a build for hosts alone takes no Kokkos that wants nvcc")
        self.assertTrue(self.probed(with_cuda, "CUDA"))


if __name__ == "__main__":
    unittest.main()
