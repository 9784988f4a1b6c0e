#include <gtest/gtest.h>

#include "core/planned_fault.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

TEST(PlannedFault, IsReadFromItsText) {
  EXPECT_FALSE(parse_fault(""));
  const auto once = parse_fault("flip:gradient:step=6:rank=1");
  ASSERT_TRUE(once);
  EXPECT_TRUE(once->kind == PlannedFault::Kind::flip);
  EXPECT_TRUE(once->is_due("gradient", 6, 1));
  EXPECT_FALSE(once->is_due("gradient", 7, 1));
  EXPECT_FALSE(once->is_due("gradient", 6, 0));
  EXPECT_FALSE(once->is_due("weight", 6, 1));
  const auto stuck = parse_fault("flip:moment:from=3:bits=2");
  ASSERT_TRUE(stuck);
  EXPECT_TRUE(stuck->is_due("moment", 1000000, 0));
  EXPECT_FALSE(stuck->is_due("moment", 2, 0));
  EXPECT_EQ(stuck->bits, 2);
  const auto activation = parse_fault("flip:activation:from=3:micro=2");
  ASSERT_TRUE(activation);
  EXPECT_TRUE(activation->persists());
  EXPECT_EQ(activation->micro, 2);
  const auto nan = parse_fault("nan:activation:step=4");
  ASSERT_TRUE(nan);
  EXPECT_TRUE(nan->kind == PlannedFault::Kind::nan);
}

TEST(PlannedFault, RefusesEveryOtherText) {
  for (const char* text :
       {"flip", "flip:gradient", "flip:loss:step=1", "flip:gradient:step=0", "flip:gradient:step=-1",
        "flip:gradient:step=1x", "flip:gradient:rank=1", "flip:gradient:step=1:from=2", "nan:gradient:step=1",
        "nan:activation:from=1", "nan:activation:step=1:micro=1", "flip:gradient:step=1:bits=33", "flip:gradient:step",
        "halt:activation:step=1", "flip:gradient:step=1:"}) {
    try {
      parse_fault(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sestina
