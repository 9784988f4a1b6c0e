// Ranks with NCCLs that do not fit together end with a message.
#include <gtest/gtest.h>

#include "parallel/library/nccl_start.hpp"

namespace sestina {
namespace {

std::string refusal(const std::vector<int>& versions) {
  try {
    require_nccl_versions(versions);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unavailable);
    return error.what();
  }
  return "";
}

TEST(NcclStart, NamesTheRankWhoseVersionDoesNotFit) {
  EXPECT_EQ(refusal({22809, 22809, 22809}), "");
  EXPECT_NE(refusal({22809, 22809, 21805}).find("rank 2 of the group: got 2.18.5, rank 0 has 2.28.9"),
            std::string::npos);
  EXPECT_NE(refusal({2708, 2708}).find("rank 0 of the group: got 2.7.8, at least 2.14.0"), std::string::npos);
}

}  // namespace
}  // namespace sestina
