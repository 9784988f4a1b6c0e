#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/blas/exec.hpp"
#include "regression/unit/allocation_counter.hpp"

namespace sestina {
namespace {

volatile std::size_t length = 100;  // so that the compiler cannot leave an allocation out

TEST(AllocationCounter, CountsThisProgramsAllocations) {
  std::vector<double> before(length);
  AllocationCounter counter;
  EXPECT_EQ(counter.heap(), 0);
  const auto one = std::make_unique<double[]>(length);
  EXPECT_EQ(counter.heap(), 1);
  EXPECT_NE(counter.places().find("unit_support"), std::string::npos);
}

TEST(AllocationCounter, CountsWhatTheStandardLibraryAllocatesForUs) {
  std::string text = "short";
  AllocationCounter counter;
  text.append(length, 'x');  // grows inside libstdc++
  EXPECT_EQ(counter.heap(), 1);
}

TEST(AllocationCounter, CountsAlignedAndNothrowForms) {
  struct alignas(128) Wide {
    char bytes[128];
  };
  AllocationCounter counter;
  const std::vector<Wide> aligned(length);
  EXPECT_EQ(counter.heap(), 1);
  const std::unique_ptr<char[]> quiet(new (std::nothrow) char[length]);
  EXPECT_EQ(counter.heap(), 2);
}

TEST(AllocationCounter, CountsKokkosAllocations) {
  AllocationCounter counter;
  const Kokkos::View<double*, Host::memory_space> view("view", length);
  EXPECT_EQ(counter.kokkos(), 1);
}

// In every version of Kokkos, with its deprecated code and without; what comes after it counts.
TEST(AllocationCounter, LeavesOutHandlesOfPolicies) {
  const Host exec;
  std::vector<int> seen(length);
  int* data = seen.data();
  AllocationCounter counter;
  for (int i = 0; i < 3; ++i)
    Kokkos::parallel_for("handles", Kokkos::RangePolicy<Host>(exec, 0, static_cast<int>(length)),
                         [=](int at) { data[at] = i; });
  exec.fence("handles");
  EXPECT_EQ(counter.heap(), 0) << counter.places();
  const std::vector<double> after(length);
  EXPECT_EQ(counter.heap(), 1);
}

TEST(AllocationCounter, LeavesOutOtherThreads) {
  bool allocated = false, go = false;
  std::thread other([&] {
    while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE)) std::this_thread::yield();
    const std::vector<double> theirs(length);
    allocated = theirs.size() == length;
  });
  AllocationCounter counter;
  __atomic_store_n(&go, true, __ATOMIC_RELEASE);
  other.join();
  EXPECT_TRUE(allocated);
  EXPECT_EQ(counter.heap(), 0) << counter.places();
}

TEST(AllocationCounter, RestsOutsideItsLife) {
  { AllocationCounter counter; }
  const std::vector<double> after(length);
  AllocationCounter counter;
  EXPECT_EQ(counter.heap(), 0);
}

}  // namespace
}  // namespace sestina
