#include "app/watch/restarts.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace sestina {
namespace {

std::string start(int step, const std::string& digest) {
  return fmt::format("{{\"kind\":\"run\",\"step\":{},\"deck_digest\":\"{}\"}}\n", step, digest);
}
std::string end(const std::string& detail) {
  return fmt::format("{{\"kind\":\"event\",\"step\":3,\"what\":\"diverged\",\"detail\":\"{}\"}}\n", detail);
}

TEST(Restarts, EndWhereTheRunDivergesAgainAndAgain) {
  const std::string once = start(3, "d") + "{\"kind\":\"train\",\"step\":4}\n" + end("loss nan");
  EXPECT_EQ(restart_problem("", 3, "d"), "");
  EXPECT_EQ(restart_problem(once + once, 3, "d"), "");
  const std::string problem = restart_problem("cut\":1}\n" + once + once + once, 3, "d");
  EXPECT_NE(problem.find("the last 3 starts from step 3 with this deck"), std::string::npos) << problem;
  EXPECT_NE(problem.find("loss nan"), std::string::npos) << problem;
  EXPECT_NE(restart_problem(start(3, "d") + once + once + once + once, 3, "d").find("the last 4"), std::string::npos);
}

TEST(Restarts, GoOnWhereSomethingIsDifferent) {
  const std::string once = start(3, "d") + end("loss nan"), thrice = once + once + once;
  EXPECT_EQ(restart_problem(thrice, 3, "other"), "") << "another deck";
  EXPECT_EQ(restart_problem(thrice, 4, "d"), "") << "a newer checkpoint";
  EXPECT_EQ(restart_problem(thrice + start(3, "d"), 3, "d"), "") << "the last start was killed";
  EXPECT_EQ(restart_problem(once + once + start(3, "d") + end("loss inf"), 3, "d"), "") << "other words";
  EXPECT_EQ(restart_problem(once + start(3, "other") + end("loss nan") + once + once, 3, "d"), "");
  EXPECT_EQ(restart_problem(once + start(3, "d") + once + once, 3, "d"), "") << "a kill between them";
}

}  // namespace
}  // namespace sestina
