// That the other tests of this program run what they are meant to run: the portable twins leave names of kernels behind
// that the host's own do not.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kernels/blas/gemm.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "regression/unit/reference.hpp"

namespace sestina {
namespace {

std::set<std::string> started;

void note(const char* name, std::uint32_t, std::uint64_t*) { started.insert(name); }

struct Forced : testing::Test {
  Forced() {
    started.clear();
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(note);
    Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(note);
  }
  ~Forced() override {
    Kokkos::Tools::Experimental::set_begin_parallel_for_callback(nullptr);
    Kokkos::Tools::Experimental::set_begin_parallel_reduce_callback(nullptr);
  }
  static bool any(const std::string& part) {
    for (const std::string& name : started)
      if (name.find(part) != name.npos) return true;
    return false;
  }
  reference::Field<float, Host> x{reference::random_array(40, 40, 1)}, y{40, 40};
};

TEST_F(Forced, ProductsAreThoseOfKokkosKernels) {
  for (const bool deterministic : {false, true}) {
    started.clear();
    Gemm<Host> gemm(Host(), deterministic);
    gemm.operator()<float, float>(Op::none, Op::transpose, 1, x.read(), x.read(), 0, y.matrix());
    EXPECT_TRUE(any("gemm") || any("GEMM")) << testing::PrintToString(started);
  }
}

TEST_F(Forced, SumsAreThoseOfDevices) {
  Workspace<Host> workspace(bytes_of<SumScratch<Host>, Host>(40));
  sum<Host, float>(Host(), x.read_vector(), workspace);
  EXPECT_TRUE(any("reduce_total")) << testing::PrintToString(started);
}

// It works in memory of its own, and tells a failure where it was told to.
TEST_F(Forced, DecompositionsComeToTheHost) {
  EXPECT_EQ(bytes_taken<Host>([&](auto& counter) { Solver<Host>::declare_eigh<float>(counter, 40); }), 0u);
  EXPECT_GT(bytes_taken<Serial>([&](auto& counter) { Solver<Serial>::declare_eigh<float>(counter, 40); }), 0u);
  Solver<Host> solver{Host()};
  Kokkos::View<std::int32_t*, Kokkos::HostSpace> info("info", 1);
  info(0) = 7;
  Workspace<Host> none(0);
  reference::Array nan(3, 3, std::nan(""));
  const reference::Field<float, Host> bad(nan), vectors(3, 3), values(1, 3);
  const bool answered = solver.eigh<float>(bad.read(), vectors.matrix(), values.vector(), none);
  solver.report_to(Vector<std::int32_t, Host>(info.data(), 1));
  EXPECT_TRUE(solver.eigh<float>(bad.read(), vectors.matrix(), values.vector(), none));
  EXPECT_EQ(info(0), answered ? 0 : 1);
  EXPECT_THROW(solver.eigh<float>(bad.read(), y.matrix(), values.vector(), none), Error);
}

}  // namespace
}  // namespace sestina
