#include <gtest/gtest.h>

#include "app/audit/audit_verdict.hpp"
#include "app/audit/planned_flips.hpp"

namespace sestina {
namespace {

using Kind = AuditVerdict::Kind;

void expect(const std::vector<Computed>& all, Kind kind, const std::vector<int>& ranks) {
  const AuditVerdict verdict = judge(all);
  EXPECT_EQ(verdict.kind, kind);
  EXPECT_EQ(verdict.ranks, ranks);
}

TEST(AuditVerdict, EqualResultsAreRight) {
  expect({{0, 7}, {1, 7}}, Kind::equal, {});
  expect({{0, 7}, {0, 7}, {0, 7}}, Kind::equal, {});
}

TEST(AuditVerdict, WhatWasWrongForOnceIsTransient) {
  expect({{0, 7}, {1, 8}, {0, 7}, {1, 7}, {0, 7}, {1, 7}}, Kind::transient, {1});
  expect({{0, 7}, {0, 8}, {0, 7}, {0, 7}}, Kind::transient, {0});
}

TEST(AuditVerdict, WhatStaysWrongIsPersistent) {
  expect({{0, 7}, {1, 8}, {0, 7}, {1, 9}, {0, 7}, {1, 10}}, Kind::persistent, {1});
  expect({{0, 1}, {0, 2}, {0, 3}, {0, 4}}, Kind::persistent, {0});
}

TEST(AuditVerdict, RanksThatRepeatThemselvesAndDisagreeAreUndecided) {
  expect({{0, 7}, {1, 8}, {0, 7}, {1, 8}, {0, 7}, {1, 8}}, Kind::undecided, {0, 1});
  expect({{2, 7}, {3, 8}}, Kind::undecided, {2, 3});
}

TEST(AuditVerdict, AThirdRankDecides) {
  expect({{0, 7}, {1, 8}, {0, 7}, {1, 8}, {2, 8}, {0, 7}, {1, 8}, {2, 8}}, Kind::persistent, {0});
  expect({{0, 7}, {1, 8}, {2, 8}}, Kind::persistent, {0});
}

TEST(PlannedFlips, ATransientFlipMeetsTheOwnPassesOfItsUpdateOnce) {
  const auto alone = make_lone_communicator();
  PlannedFlips flips(parse_fault("flip:gradient:step=6:bits=2"), *alone);
  EXPECT_TRUE(flips.planned());
  EXPECT_FALSE(flips.in_pass(5, false));
  EXPECT_FALSE(flips.in_pass(6, true));
  const auto flip = flips.in_pass(6, false);
  ASSERT_TRUE(flip);
  EXPECT_EQ(flip->bits, 2);
  EXPECT_FALSE(flips.in_pass(6, false));  // the passes are run again
  EXPECT_FALSE(PlannedFlips(parse_fault("flip:gradient:step=6:rank=1"), *alone).planned());
}

TEST(PlannedFlips, APersistentFlipMeetsEveryComputationOfTheSameTensor) {
  const auto alone = make_lone_communicator();
  PlannedFlips flips(parse_fault("flip:gradient:from=6"), *alone);
  const auto first = flips.in_pass(6, true), second = flips.in_pass(6, false), third = flips.in_pass(7, true);
  ASSERT_TRUE(first && second && third);
  EXPECT_EQ(first->tensor, second->tensor);
  EXPECT_EQ(first->tensor, third->tensor);
  EXPECT_NE(first->place, second->place);
  EXPECT_FALSE(flips.in_pass(5, false));
}

TEST(PlannedFlips, AGradientIsThatOfTheAuditedMicroBatchOrOfTheOneNamed) {
  const auto alone = make_lone_communicator();
  EXPECT_EQ(PlannedFlips(parse_fault("flip:gradient:step=6"), *alone).in_pass(6, false)->micro, 0);
  EXPECT_EQ(PlannedFlips(parse_fault("flip:gradient:step=6"), *alone).in_pass(6, false, 3)->micro, 3);
  EXPECT_EQ(PlannedFlips(parse_fault("flip:gradient:step=6:micro=2"), *alone).in_pass(6, false, 3)->micro, 2);
  EXPECT_THROW(parse_fault("flip:weight:step=6:micro=2"), Error);
  const auto gradient = PlannedFlips(parse_fault("flip:gradient:step=6"), *alone).in_pass(6, false);
  const auto activation = PlannedFlips(parse_fault("flip:activation:step=6:micro=2"), *alone).in_pass(6, false, 3);
  ASSERT_TRUE(gradient && activation);
  EXPECT_FALSE(gradient->in_activation);
  EXPECT_TRUE(activation->in_activation);
  EXPECT_EQ(activation->micro, 2);
}

TEST(PlannedFlips, PlacesDifferByPlaceAndUpdate) {
  const auto place = [](const char* fault, std::int64_t t) {
    const auto alone = make_lone_communicator();
    return PlannedFlips(parse_fault(fault), *alone).in_pass(t, false)->place;
  };
  EXPECT_NE(place("flip:gradient:step=6", 6), place("flip:gradient:step=6:place=1", 6));
  EXPECT_NE(place("flip:gradient:step=6", 6), place("flip:gradient:step=7", 7));
}

}  // namespace
}  // namespace sestina
