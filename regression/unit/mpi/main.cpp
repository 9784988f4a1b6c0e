// The program of several ranks: every rank runs every test; the first one prints; a failure anywhere fails all. A rank
// that leaves a test before its end is no longer where the others expect it: that ends all of them.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <cstdio>

#include "app/start/all_ranks.hpp"
#include "kernels/blas/host/blas_cores.hpp"
#include "regression/unit/mpi/ranks.hpp"

namespace sestina {

Runtime*& test_runtime() {
  static Runtime* runtime = nullptr;
  return runtime;
}

}  // namespace sestina

namespace {

// What a rank other than the first has to say: its failures alone.
class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, result.file_name() ? result.file_name() : "",
                   result.line_number(), result.message());
  }

 private:
  int rank_;
};

// Ends all ranks after a test that this one did not run to its end (an ASSERT, an exception): else they would wait for
// its messages, for as long as a wait may take.
class LostRank : public testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->HasFatalFailure()) return;
    std::fprintf(stderr, "%s.%s did not run to its end: all ranks end here\n", test.test_suite_name(), test.name());
    std::fflush(nullptr);
    sestina::test_runtime()->abort(sestina::ExitCode::internal);
  }
};

}  // namespace

// Plug-ins that MPI closes stay where they are: memory that they leave behind can be told from ours (leaks.supp).
extern "C" int dlclose(void*) { return 0; }

int main(int argc, char** argv) {
  sestina::host::require_blas_cores(argv);
  testing::InitGoogleTest(&argc, argv);
  constexpr double timeout = 60;
  sestina::Runtime runtime(sestina::all_ranks(), timeout);
  sestina::test_runtime() = &runtime;
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (!runtime.is_first()) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(runtime.rank()));
  }
  listeners.Append(new LostRank);
  Kokkos::ScopeGuard kokkos(argc, argv);
  double failed = RUN_ALL_TESTS();
  runtime.world().all_reduce(&failed, 1, sestina::Reduction::max);
  return static_cast<int>(failed);
}
