import json
import math
import pathlib

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *

checkout = pathlib.Path(__file__).resolve().parents[5].as_uri()


class Sestina(CMakePackage, CudaPackage):
    """Pretrains transformer language models with matrix-structured optimizers, on CUDA devices or host threads."""

    # The checkout that holds this recipe; `git archive -o sestina-0.1.0.tar.gz v0.1.0` puts a release's archive there.
    homepage = checkout
    git = checkout
    url = f"{checkout}/sestina-0.1.0.tar.gz"
    maintainers("sestina-developers")
    license("Apache-2.0")
    # Each release has the tag of its version. That of 0.1.0 is made when it is released; until then main comes first.
    version("main", branch="main", get_full_repo=True, preferred=True)
    version("0.1.0", tag="v0.1.0", get_full_repo=True)

    # Most variants are the CMake option SESTINA_ENABLE_<NAME>; cuda and cuda_arch are those of the Kokkos that is found.
    variant("openmp", default=True, description="Host threads through OpenMP")
    variant("mpi", default=True, description="Ranks through MPI")
    variant("nccl", default=False, when="+cuda+mpi", description="Device collectives through NCCL")
    variant("onednn", default=True, description="Host matrix products through oneDNN")
    variant("uring", default=True, description="State on NVMe through io_uring where the system allows it")
    variant("tests", default=False, description="Build and install the test suite")
    variant("tools", default=True, description="Build sestina-replay")
    variant("benchmarks", default=False, when="+tests", description="Build the micro-benchmarks")
    variant("shared", default=False, description="Build shared libraries")
    variant("cxxstd", default="20", values=("20",), multi=False, description="C++ standard")
    conflicts("~openmp", msg="host threads are those of OpenMP; one thread is run.threads = 1")

    # Every range begins with a version that was built and tested with: regression/spack/tried_versions.toml.
    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25.1:", type="build")
    depends_on("ninja@1.11.1:", type="build")
    depends_on("pkgconfig", type="build")
    generator("ninja")

    depends_on("kokkos@4.7.00: +serial cxxstd=20", when="cxxstd=20")
    depends_on("kokkos+openmp", when="+openmp")
    depends_on("kokkos+shared", when="+shared")  # one copy of it for all of ours
    depends_on("onednn@2.6.3:2,3.2: cpu_runtime=omp", when="+onednn")
    depends_on("blas")
    depends_on("lapack")
    depends_on("openblas@0.3.21: threads=openmp", when="^[virtuals=blas] openblas")
    depends_on("hdf5@1.10.8:")
    depends_on("zlib-api")
    for library in ("tomlplusplus@3.3.0:", "cli11@2.1.2:", "nlohmann-json@3.11.2:", "fmt@9.1.0:", "spdlog@1.10.0:", "xxhash@0.8.1:", "pcre2@10.42:",
                    "utf8proc@2.8.0:", "zstd@1.5.4:"):
        depends_on(library)
    depends_on("liburing@2.3:", when="+uring")
    depends_on("mpi@3.1:", when="+mpi")
    depends_on("nccl@2.28.9:", when="+nccl")
    depends_on("googletest@1.12.1:", when="+tests")
    depends_on("python@3.11:", type=("build", "run"), when="+tests")
    depends_on("benchmark@1.7.1:", when="+benchmarks")

    # One architecture per Kokkos build, and the same everywhere.
    conflicts("+cuda", when="cuda_arch=none", msg="+cuda needs cuda_arch")
    requires("^kokkos+wrapper", when="+cuda", msg="nvcc_wrapper compiles the device code")
    depends_on("kokkos+cuda_lambda", when="+cuda ^kokkos@:4")
    depends_on("cuda@13.0:", when="+cuda")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"kokkos +cuda cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
        depends_on(f"nccl +cuda cuda_arch={arch}", when=f"+nccl cuda_arch={arch}")

    sanity_check_is_file = ["bin/sestina", "bin/sestina-bench", "bin/sestina-diagnose", "lib/cmake/Sestina/SestinaConfig.cmake"]

    def cmake_args(self):
        names = ("mpi", "nccl", "onednn", "uring", "tests", "tools", "benchmarks")
        args = [self.define_from_variant(f"SESTINA_ENABLE_{name.upper()}", name) for name in names]
        args += [self.define_from_variant("BUILD_SHARED_LIBS", "shared"), self.define_from_variant("CMAKE_CXX_STANDARD", "cxxstd")]
        args += [self.define("Kokkos_ROOT", self.spec["kokkos"].prefix), self.define("CMAKE_INSTALL_LIBDIR", "lib")]
        args.append(self.define("SESTINA_ENABLE_CUDNN", False))  # its front end is no package
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CXX_COMPILER", self["kokkos"].kokkos_cxx))
        return args

    @property
    def installed(self):
        return join_path(self.prefix.share, "sestina")

    def test_version(self):
        """the installed program answers without a device"""
        sestina = which(self.prefix.bin.sestina, required=True)
        assert "sestina" in sestina("--version", output=str.split)

    def test_plan(self):
        """a deck of the installation is read and planned"""
        sestina = which(self.prefix.bin.sestina, required=True)
        with working_dir(self.test_suite.stage, create=True):
            sestina("plan", "-i", join_path(self.installed, "inputs", "first_run.toml"), "--json")

    def test_train_and_resume(self):
        """five steps of a tiny model, and three more from their checkpoint"""
        sestina = which(self.prefix.bin.sestina, required=True)
        deck = join_path(self.installed, "inputs", "tiny_llama.toml")
        schedule = ("schedule.kind=constant", "schedule.warmup_steps=0")  # the same for five steps and for eight
        words = ("train", "-i", deck, "-d", "run", "train.precision=fp32", "checkpoint.every=5", "metrics.every=1", *schedule)
        with working_dir(self.test_suite.stage, create=True):
            sestina(*words, "run.steps=5")
            assert sorted(self.losses()) == list(range(1, 6)), "five steps"
            sestina(*words, "run.steps=8", "-r", "auto")
            losses = self.losses()
        assert sorted(losses) == list(range(1, 9)), "three steps more, none of them twice"
        assert all(math.isfinite(loss) for loss in losses.values()) and losses[8] < losses[1], "the loss falls"

    def losses(self):
        """{step: loss} of the run in the working directory"""
        lines = [json.loads(line) for line in pathlib.Path("run", "metrics.jsonl").read_text().splitlines()]
        trained = [(line["step"], line["loss"]) for line in lines if line["kind"] == "train"]
        assert len(trained) == len(dict(trained)), "a step was trained twice"
        return dict(trained)

    def test_own_optimizer(self):
        """a project finds the installed package, adds an optimizer and trains with it"""
        cmake = which(self.spec["cmake"].prefix.bin.cmake, required=True)
        source = join_path(self.installed, "examples", "own_optimizer")
        with working_dir(self.test_suite.stage, create=True):
            cmake("-S", source, "-B", "own", f"-DSestina_ROOT={self.prefix}", f"-DKokkos_ROOT={self.spec['kokkos'].prefix}")
            cmake("--build", "own")
            which(join_path("own", "own_optimizer"), required=True)("train", "-i", join_path(source, "deck.toml"), "-d", "run")
