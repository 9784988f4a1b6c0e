// The program of several ranks: every rank runs every test; the first one prints; a failure anywhere fails all.
#include <gtest/gtest.h>

#include <Kokkos_Core.hpp>
#include <cstdio>

#include "app/start/all_ranks.hpp"
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

}  // namespace

// Plug-ins that MPI closes stay where they are: memory that they leave behind can be told from ours (leaks.supp).
extern "C" int dlclose(void*) { return 0; }

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr double timeout = 60;
  sestina::Runtime runtime(sestina::all_ranks(), timeout);
  sestina::test_runtime() = &runtime;
  if (!runtime.is_first()) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(runtime.rank()));
  }
  Kokkos::ScopeGuard kokkos(argc, argv);
  double failed = RUN_ALL_TESTS();
  runtime.world().all_reduce(&failed, 1, sestina::Reduction::max);
  return static_cast<int>(failed);
}
