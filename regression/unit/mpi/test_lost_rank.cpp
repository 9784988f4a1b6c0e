// What lost_rank.py starts: tests that one rank leaves early, while the others wait for it.
#include <gtest/gtest.h>

#include "regression/unit/mpi/ranks.hpp"

namespace sestina {
namespace {

bool is_last() { return world().rank() == world().size() - 1; }

TEST(DISABLED_LostRank, Throws) {
  if (is_last()) fail(ExitCode::unavailable, "this rank gives up");
  world().barrier();
}

TEST(DISABLED_LostRank, Asserts) {
  ASSERT_FALSE(is_last()) << "this rank gives up";
  world().barrier();
}

}  // namespace
}  // namespace sestina
