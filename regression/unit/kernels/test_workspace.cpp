// A workspace that counts hands out what one with memory does, and says how much that needs.
#include "kernels/blas/workspace.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sestina {
namespace {

struct Pair {
  Pair(Workspace<Host>& workspace, std::size_t n) : a(workspace.take<double>(n)), b(workspace.take<float>(2, n)) {}
  Vector<double, Host> a;
  Matrix<float, Host> b;
};

constexpr std::size_t pair_bytes = 1024 + 1024;  // 100 doubles, 200 floats, each rounded up to 256 bytes

TEST(Workspace, CountsWhatAStructTakes) { EXPECT_EQ((bytes_of<Pair, Host>(std::size_t{100})), pair_bytes); }

TEST(Workspace, ACounterGivesShapesAndNoMemory) {
  auto counter = Workspace<Host>::counter();
  const Pair pair(counter, 100);
  EXPECT_EQ(pair.b.extent(0), 2u);
  EXPECT_EQ(pair.b.extent(1), 100u);
  EXPECT_EQ(pair.a.data(), nullptr);
  EXPECT_EQ(counter.capacity(), 0u);
}

// What is held while another call is made counts with the largest of such calls, which come one after another.
TEST(Workspace, CountsTheMostThatIsHeldAtOnce) {
  const std::size_t bytes = bytes_taken<Host>([](Workspace<Host>& workspace) {
    const Pair held(workspace, 100);
    declare<Pair>(workspace, std::size_t{100});
    declare<Pair>(workspace, std::size_t{10});
  });
  EXPECT_EQ(bytes, 2 * pair_bytes);
}

TEST(Workspace, KeepsThePeakOfARunAndRefusesMoreThanItHas) {
  Workspace<Host> workspace(bytes_of<Pair, Host>(std::size_t{100}));
  {
    const auto frame = workspace.frame();
    const Pair pair(workspace, 100);
    EXPECT_EQ(pair.b.data() - reinterpret_cast<float*>(pair.a.data()), 1024 / 4);
    EXPECT_THROW(workspace.take<float>(1), Error);
  }
  EXPECT_EQ(workspace.peak(), workspace.capacity());
  EXPECT_NO_THROW(workspace.take<float>(1));
}

// Libraries ask for it of memory that is theirs for a call. Views begin where an allocator's header ends.
TEST(Workspace, BeginsEachPieceAtAMultipleOfItsAlignment) {
  std::vector<Workspace<Host>> several;
  for (std::size_t i = 1; i <= 20; ++i) {
    several.emplace_back(bytes_of<Pair, Host>(i));
    const auto frame = several.back().frame();
    const Pair pair(several.back(), i);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pair.a.data()) % Workspace<Host>::alignment, 0u) << i;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pair.b.data()) % Workspace<Host>::alignment, 0u) << i;
    std::fill_n(pair.b.data(), pair.b.size(), 1.0f);  // all of it is there, for sanitizers
    EXPECT_EQ(several.back().peak(), several.back().capacity());
  }
  EXPECT_EQ(Workspace<Host>(0).capacity(), 0u);
}

}  // namespace
}  // namespace sestina
