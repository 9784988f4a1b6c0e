// Waits for other ranks: how long they last beyond their end, what they cost the core, and what they say at the limit.
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>

#include "parallel/comm/poll.hpp"

namespace sestina {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double thread_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Poll, PausesAreAShareOfTheWait) {
  for (const bool shares_cores : {false, true}) {
    EXPECT_EQ(poll_pause(0, shares_cores), 0);
    EXPECT_EQ(poll_pause(400e-6, shares_cores) > 0, shares_cores);
    for (const double waited : {1e-3, 10e-3, 1.0, 100.0}) {
      EXPECT_GT(poll_pause(waited, shares_cores), 0);
      EXPECT_LE(poll_pause(waited, shares_cores), waited / 32);
    }
    EXPECT_LE(poll_pause(1e6, shares_cores), 1e-3);  // an operator's signal is seen at once
  }
}

TEST(Poll, ALongWaitLeavesItsCoreToOthers) {
  const Clock::time_point begin = Clock::now();
  const double used = thread_seconds();
  poll_until(
      "wait", [&] { return seconds_since(begin) > 0.3; }, [] { return std::string(); });
  EXPECT_LT(thread_seconds() - used, 0.1);  // polls take some 3 ms of the 300
}

TEST(Poll, SaysWhoIsLostAtTheLimit) {
  const WaitLimit before = wait_limit();
  wait_limit() = {.seconds = 0.05};
  try {
    poll_until(
        "sum", [] { return false; }, [] { return std::string("rank 3"); });
    ADD_FAILURE() << "the wait ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unavailable);
    EXPECT_NE(std::string(error.what()).find("for rank 3 in \"sum\""), std::string::npos) << error.what();
  }
  wait_limit() = before;
}

}  // namespace
}  // namespace sestina
