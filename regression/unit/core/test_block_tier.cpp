// The states of one block on its way between memory and a store: the table of transitions next to one written down
// apart.
#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/memory/blocks.hpp"
#include "kernels/base/error.hpp"

namespace sestina::reference {
namespace {

TEST(BlockTier, AllowsTheseTransitionsAndNoOthers) {
  // State, event, state; written down apart from the table in the program.
  const std::map<std::pair<std::string, std::string>, std::string> model = {
      {{"clean", "look"}, "computing"},     {{"ready", "look"}, "computing"},    {{"dirty", "look"}, "computing"},
      {{"computing", "look"}, "computing"}, {{"clean", "use"}, "computing"},     {{"clean", "claim"}, "computing"},
      {{"clean", "evict"}, "dirty"},        {{"computing", "use"}, "computing"}, {{"computing", "release"}, "ready"},
      {{"ready", "use"}, "computing"},      {{"ready", "claim"}, "computing"},   {{"ready", "evict"}, "dirty"},
      {{"dirty", "use"}, "computing"},      {{"dirty", "claim"}, "computing"},   {{"dirty", "write"}, "writing"},
      {{"writing", "written"}, "on_nvme"},  {{"writing", "failed"}, "ready"},    {{"on_nvme", "claim"}, "computing"},
      {{"on_nvme", "read"}, "reading"},     {{"reading", "arrived"}, "clean"},   {{"reading", "failed"}, "on_nvme"}};
  // A way to each state.
  using enum BlockEvent;
  const std::map<std::string, std::vector<BlockEvent>> ways = {{"ready", {}},
                                                               {"computing", {use}},
                                                               {"dirty", {evict}},
                                                               {"writing", {evict, write}},
                                                               {"on_nvme", {evict, write, written}},
                                                               {"reading", {evict, write, written, read}},
                                                               {"clean", {evict, write, written, read, arrived}}};
  for (const auto& [from, way] : ways)
    for (const BlockEvent event : {use, look, claim, release, evict, write, written, read, arrived, failed}) {
      BlockTier tier;
      for (const BlockEvent step : way) tier.apply(step);
      ASSERT_EQ(name(tier.state()), from);
      const auto found = model.find({from, std::string(name(event))});
      EXPECT_EQ(tier.allows(event), found != model.end()) << from << " " << name(event);
      if (found != model.end()) {
        tier.apply(event);
        EXPECT_EQ(name(tier.state()), found->second) << from << " " << name(event);
      } else {
        EXPECT_THROW(tier.apply(event), Error) << from << " " << name(event);
        EXPECT_EQ(name(tier.state()), from) << "a refused event changes nothing";
      }
    }
}

TEST(BlockTier, IsInUseUntilTheLastHasEnded) {
  BlockTier tier;
  tier.apply(BlockEvent::use);
  tier.apply(BlockEvent::use);
  tier.apply(BlockEvent::release);
  EXPECT_EQ(tier.state(), BlockState::computing);
  EXPECT_EQ(tier.users(), 1);
  tier.apply(BlockEvent::release);
  EXPECT_EQ(tier.state(), BlockState::ready);
}

TEST(BlockTier, HasChangedSinceSomebodyWroteIt) {
  using enum BlockEvent;
  BlockTier tier;
  const auto after = [&tier](std::initializer_list<BlockEvent> events) {
    for (const BlockEvent event : events) tier.apply(event);
    return tier.changed();
  };
  EXPECT_FALSE(after({look, release}));
  EXPECT_TRUE(after({look, use, release, release}));  // one who writes next to one who reads
  EXPECT_TRUE(after({look, release, evict, look, release, evict, write, failed}));
  EXPECT_FALSE(after({evict, write, written}));
  EXPECT_FALSE(after({read, arrived, look, release, evict, write, written}));
  EXPECT_TRUE(after({claim, release}));
}

}  // namespace
}  // namespace sestina::reference
