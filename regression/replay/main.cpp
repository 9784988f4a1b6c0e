// sestina-replay FILE.h5 ...: runs golden files through the program's own code on each execution space; a line per file
// and space. Exit code 0: all agree, 1: one does not, 65: a file is not understood.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>

#include "core/optimizer/register_optimizers.hpp"
#include "kernels/blas/host/blas_cores.hpp"
#include "regression/replay/replay.hpp"

namespace {

using namespace sestina;

constexpr const char* kinds[] = {"optimizer", "orthogonalize", "cayley-neumann", "poet-linear",
                                 "poet-int8", "poet-train",    "pipeline"};

template <class Exec>
replay::Outcome run(const Exec& exec, const Hdf5Reader& file) {
  const std::string kind = file.text("/", "kind");
  if (kind == "pipeline") {
    if constexpr (!std::is_same_v<Exec, Serial>) return replay::replay_pipeline(exec, file);
  }
  if (kind == "orthogonalize") return replay::replay_orthogonalize(exec, file);
  if (kind != "optimizer") return replay::replay_poet(exec, file);
  if (file.text("/", "optimizer") == "adamw") {
    if constexpr (!std::is_same_v<Exec, Serial>) return replay::replay_adamw(exec, file);
  }
  return replay::replay_matrix(exec, file);
}

template <class Exec>
bool replay_on(const Exec& exec, const char* path, const Hdf5Reader& file) {
  const replay::Outcome outcome = run(exec, file);
  const bool ok = outcome.of_tolerance <= 1;
  fmt::print("{}  {}  relative error {:.2e}  {:.3f} of the tolerance  {}\n", path, Exec::name(), outcome.error,
             outcome.of_tolerance, ok ? "ok" : "FAILED");
  return ok;
}

bool replay_file(const char* path) {
  const Hdf5Reader file(path);
  const std::string format = file.text("/", "format"), kind = file.text("/", "kind");
  if (format != "sestina-golden" || std::find(std::begin(kinds), std::end(kinds), kind) == std::end(kinds))
    fail(ExitCode::bad_data, "no rule for {} {}, only for {}", format, kind, fmt::join(kinds, ", "));
  bool ok = replay_on(Host{}, path, file);
  if (kind != "pipeline" && (kind != "optimizer" || file.text("/", "optimizer") != "adamw"))
    ok = replay_on(Serial{}, path, file) && ok;  // AdamW and whole models run on Host alone
  if constexpr (!std::is_same_v<Host, Device>) ok = replay_on(Device{}, path, file) && ok;
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  sestina::host::require_blas_cores(argv);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // one message of ours, not HDF5's stack
  Kokkos::ScopeGuard kokkos(argc, argv);
  register_optimizers();
  if (argc < 2) {
    std::fputs("usage: sestina-replay FILE.h5 ...\n", stderr);
    return static_cast<int>(ExitCode::usage);
  }
  int code = 0;
  for (int i = 1; i < argc; ++i) {
    try {
      if (!replay_file(argv[i]) && code == 0) code = 1;
    } catch (const Error& error) {
      std::fprintf(stderr, "sestina-replay: %s: %s\n", argv[i], error.what());
      code = static_cast<int>(ExitCode::bad_data);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "sestina-replay: %s: %s\n", argv[i], error.what());
      code = static_cast<int>(ExitCode::internal);
    }
  }
  return code;
}
