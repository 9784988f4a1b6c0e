// What the library says it is; regression/install compares it with the package.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/base/version.hpp"

namespace sestina {
namespace {

TEST(Version, TextAndNumbersAgree) {
  const Version& v = version();
  EXPECT_EQ(v.text, fmt::format("{}.{}.{}", v.major, v.minor, v.patch));
  EXPECT_GT(v.major + v.minor + v.patch, 0);
  EXPECT_FALSE(v.commit.empty());
  EXPECT_FALSE(v.compiler.empty());
}

}  // namespace
}  // namespace sestina
