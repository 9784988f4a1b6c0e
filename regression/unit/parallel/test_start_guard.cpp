// The watch over the start of MPI: when it gives up, and that it leaves the process as the host program wants.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "parallel/comm/poll.hpp"

namespace sestina {
namespace {

std::atomic<int> left = 0;

// With a handler that notes the code and lets the process live.
class StartGuardTest : public testing::Test {
 protected:
  void SetUp() override {
    left = 0;
    before_ = wait_limit();
    wait_limit() = {};
    wait_limit().phase = "start of MPI";
    set_exit_handler([](int code) { left = code; });
  }
  void TearDown() override {
    set_exit_handler(nullptr);
    wait_limit() = before_;
  }
  // What the guard has left with, or 0 after a time in which it should not leave.
  static int wait_for_code(std::chrono::milliseconds limit) {
    for (const auto end = std::chrono::steady_clock::now() + limit;
         left == 0 && std::chrono::steady_clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return left;
  }

 private:
  WaitLimit before_;
};

constexpr std::chrono::seconds long_enough(20);

TEST_F(StartGuardTest, GivesUpAtItsLimit) {
  testing::internal::CaptureStderr();
  const StartGuard guard(0.1, {});
  EXPECT_EQ(wait_for_code(long_enough), static_cast<int>(ExitCode::unavailable));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("start of MPI"), std::string::npos);
}

TEST_F(StartGuardTest, GivesUpSoonAfterItIsToldTo) {
  const StartGuard guard(
      1000, [] { return 75; }, 0.1);
  EXPECT_EQ(wait_for_code(long_enough), 75);
}

TEST_F(StartGuardTest, EndsWithTheStart) {
  {
    const StartGuard guard(
        0.2, [] { return 75; }, 0.2);
  }
  EXPECT_EQ(wait_for_code(std::chrono::milliseconds(400)), 0);
}

TEST_F(StartGuardTest, LeavesByItselfWithoutAHandler) {
  set_exit_handler(nullptr);
  EXPECT_EXIT(
      {
        const StartGuard guard(0.1, {});
        std::this_thread::sleep_for(long_enough);
      },
      testing::ExitedWithCode(static_cast<int>(ExitCode::unavailable)), "start of MPI");
}

}  // namespace
}  // namespace sestina
