// When passes are done as they come, recorded, and started: with graphs that count, in place of a device's. And which
// decks may ask for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "core/model/pass_graphs.hpp"
#include "regression/unit/core/options_rig.hpp"

namespace sestina {
namespace {

std::vector<std::string> happened;

struct CountingGraph {
  explicit CountingGraph(void* queue) : own_queue(queue) {}
  void record(const std::function<void()>& work) {
    happened.push_back("record");
    work();
  }
  void start() const { happened.push_back(own_queue == nullptr ? "start nowhere" : "start"); }
  void* own_queue;
};

struct PassGraphsTest : testing::Test {
  PassGraphsTest() { happened.clear(); }
  int queue = 0;
  PassGraphs<CountingGraph> graphs{&queue};
  void pass(const PassKey& key, const char* name) {
    graphs.run(key, [=] { happened.push_back(name); });
  }
};

TEST_F(PassGraphsTest, AreMadeOfTheSecondPassOfEachKey) {
  PassKey forward, backward;
  backward.backward = true;
  pass(forward, "forward");
  pass(backward, "backward");
  EXPECT_EQ(happened, (std::vector<std::string>{"forward", "backward"}));
  happened.clear();
  pass(forward, "forward");
  EXPECT_EQ(happened, (std::vector<std::string>{"record", "forward", "start"}));
  happened.clear();
  pass(forward, "forward");
  pass(backward, "backward");
  EXPECT_EQ(happened, (std::vector<std::string>{"start", "record", "backward", "start"}));
}

TEST_F(PassGraphsTest, AreOfOneKeyEach) {
  const int place = 0;
  const std::vector<PassKey> keys = {
      {},
      {.weights = &place},
      {.slot = &place},
      {.tokens = &place},
      {.masks_documents = true},
      {.backward = true},
      {.backward = true, .adds = true},
      {.backward = true, .gradient_scale = 0.5},
      {.backward = true, .gradient_scale = 0.25},
  };
  for (const PassKey& key : keys) pass(key, "pass");
  EXPECT_EQ(happened, std::vector<std::string>(keys.size(), "pass"));
}

// A gradient scale that is another one in each update: nothing is kept for it.
TEST_F(PassGraphsTest, AreNotMadeOfMoreKeysThanArePlanned) {
  for (int round = 0; round < 2; ++round)
    for (std::size_t i = 0; i < 2 * PassGraphs<>::most; ++i)
      pass({.backward = true, .gradient_scale = 1.0 + static_cast<double>(i)}, "pass");
  EXPECT_EQ(std::count(happened.begin(), happened.end(), "record"), static_cast<std::ptrdiff_t>(PassGraphs<>::most));
  EXPECT_EQ(std::count(happened.begin(), happened.end(), "pass"), static_cast<std::ptrdiff_t>(4 * PassGraphs<>::most));
}

// Each of them has numbers of its own; the first two may allocate.
TEST_F(PassGraphsTest, OfUpdatesAreRecordedEachTime) {
  UpdateGraph<CountingGraph> graph(&queue);
  for (const char* update : {"1", "2", "3", "4"}) graph.run([=] { happened.push_back(update); });
  EXPECT_EQ(happened, (std::vector<std::string>{"1", "2", "record", "3", "start", "record", "4", "start"}));
}

TEST(PassGraphOptions, AreOffUnlessAskedFor) {
  EXPECT_FALSE(read("").train.graphs);
  EXPECT_TRUE(read("[train]\ngraphs = true\nprecision = \"bf16\"\nglobal_batch = 8\nmicro_batch = 2\n").train.graphs);
}

TEST(PassGraphOptions, SayWhatHappensWithinPasses) {
  const auto refused = [](const std::string& deck, const std::string& what) {
    expect_error("[train]\ngraphs = true\nglobal_batch = 8\nmicro_batch = 4\n" + deck,
                 "train.graphs: conflicts with " + what);
  };
  refused("[parallel]\ndp = 2\n", "several ranks");
  refused("[parallel]\ntp = 2\n", "several ranks");
  refused("[parallel]\npp = 2\n", "several ranks");
  refused("[parallel]\nshard = \"weights\"\n", "parallel.shard");
  refused("[model.linear]\nform = \"lora\"\n", "model.linear");
  refused("[optimizer]\nkind = \"muon\"\nqk_clip = 50\n", "optimizer.qk_clip");
  refused("[run]\ndeterministic = true\n", "run.deterministic");
  refused("[metrics]\ntrace = 3\n", "metrics.trace");
}

}  // namespace
}  // namespace sestina
