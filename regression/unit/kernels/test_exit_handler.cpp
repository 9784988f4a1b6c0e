// The way out of a process, and who may change it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "kernels/base/exit_handler.hpp"

namespace sestina {
namespace {

int first_code = 0, other_code = 0;

TEST(ExitHandler, LeavesTheProcessByItself) {
  EXPECT_EXIT((leave_process(69), _exit(1)), testing::ExitedWithCode(69), "");
  // As _exit does, and not exit: what is registered for the end is not run.
  EXPECT_EXIT((std::atexit([] { _exit(2); }), leave_process(70)), testing::ExitedWithCode(70), "");
}

TEST(ExitHandler, TakesTheWayThatItIsGiven) {
  leave_process(5, [](int code) { other_code = code; });
  EXPECT_EQ(other_code, 5);
}

TEST(ExitHandler, IsCalledInPlaceOfAnyOther) {
  const ExitHandler handler = [](int code) { first_code = code; };
  EXPECT_EQ(set_exit_handler(handler), nullptr);
  other_code = 0;
  leave_process(7);
  EXPECT_EQ(first_code, 7);
  leave_process(8, [](int code) { other_code = code; });
  EXPECT_EQ(first_code, 8);
  EXPECT_EQ(other_code, 0);
  EXPECT_EQ(set_exit_handler(nullptr), handler);
  EXPECT_EXIT((leave_process(9), _exit(1)), testing::ExitedWithCode(9), "");
}

}  // namespace
}  // namespace sestina
