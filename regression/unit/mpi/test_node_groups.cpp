// Two-level collectives against those of one level, with ranks that act as several nodes; and a training run on them.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/exchange/traffic.hpp"
#include "parallel/plan/make_plan.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

// Ranks: NodeGroups 4 6

TEST(NodeGroups, GiveWhatOneLevelGives) {
  for (const int node_size : {0, 1, 2, 3, 4}) {  // 4 of 6: a node of four and one of two
    const auto group = with_node_groups(world().split(0, world().rank()), node_size);
    const int n = group->size(), me = group->rank();
    ASSERT_EQ(n, world().size());
    ASSERT_EQ(me, world().rank());
    double values[2] = {1.0 + me, static_cast<double>(me)};
    group->all_reduce(values, 2, Reduction::sum);
    EXPECT_EQ(values[0], n * (n + 1) / 2.0) << node_size;
    double largest = me;
    group->all_reduce(&largest, 1, Reduction::max);
    EXPECT_EQ(largest, n - 1) << node_size;
    for (int root = 0; root < n; ++root) {
      int value = me == root ? 100 + root : -1;
      group->broadcast(&value, sizeof value, root);
      EXPECT_EQ(value, 100 + root) << node_size;
    }
    group->barrier();
  }
}

// Counts the bytes that this rank's exchanges send to other nodes, by name.
class CrossNodeBytes final : public ForwardingCommunicator {
 public:
  CrossNodeBytes(std::unique_ptr<Communicator> group, int node_size, std::map<std::string, double>& bytes)
      : ForwardingCommunicator(std::move(group)), node_size_(node_size), bytes_(bytes) {}
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    double out = 0;
    for (const Message& message : sends)
      if (message.peer / node_size_ != rank() / node_size_) out += static_cast<double>(message.bytes());
    return std::make_unique<Counted>(inner_->make_exchange(name, std::move(sends), std::move(receives)), bytes_[name],
                                     out);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<CrossNodeBytes>(inner_->split(color, key), node_size_, bytes_);
  }

 private:
  struct Counted final : Exchange {
    Counted(std::unique_ptr<Exchange> exchange, double& total, double bytes)
        : exchange(std::move(exchange)), total(total), bytes(bytes) {}
    void start() override {
      total += bytes;
      exchange->start();
    }
    bool test() override { return exchange->test(); }
    void finish() override { exchange->finish(); }
    std::unique_ptr<Exchange> exchange;
    double& total;
    double bytes;
  };

  int node_size_;
  std::map<std::string, double>& bytes_;
};

// Bytes between nodes of a step, over all ranks.
std::map<std::string, double> sent_between_nodes(TrainingCase run, int node_size) {
  std::map<std::string, double> bytes;
  CrossNodeBytes counted(world().split(0, world().rank()), 2, bytes);
  run.options.parallel.node_size = node_size;
  train_on<float>(counted, run, 1);
  for (auto& [name, sum] : bytes) world().all_reduce(&sum, 1, Reduction::sum);
  return bytes;
}

TrainingCase node_case(const std::string& kind) {
  TrainingCase run = training_case(kind);
  run.options.train.global_batch = 2 * world().size();
  run.options.parallel.dp = world().size();
  run.options.parallel.bucket_elements = 20000;
  return run;
}

// Of nodes of two ranks: a node sends each sum and each weight to every other node once, as the plan says; without the
// levels weights twice and more, and gradients where ranks exchange them directly.
TEST(NodeGroups, SendBulkDataBetweenNodesOnce) {
  for (const auto partition : {ParallelOptions::Partition::optimal, ParallelOptions::Partition::replicated}) {
    TrainingCase run = node_case("muon");
    run.options.parallel.partition = partition;
    run.options.parallel.node_size = 2;
    std::map<std::string, double> planned;
    for (const Collective& c : collectives(make_plan(run.options)))
      planned[c.operation + " " + c.what] += between_nodes_bytes(c, run.options).value();
    auto two = sent_between_nodes(run, 2), one = sent_between_nodes(run, 1);
    EXPECT_GT(two["further gradients"], 0);
    EXPECT_EQ(two["gradients"], 0);
    EXPECT_EQ(two["further gradients"], planned["reduce_scatter gradients"]);
    EXPECT_GT(one["gradients"] + one["further gradients"], planned["reduce_scatter gradients"]);
    EXPECT_EQ(two["weights"], planned["all_gather weights"]);
    EXPECT_EQ(one["weights"], 2 * planned["all_gather weights"]);
    EXPECT_EQ(two["summed gradients"], planned["all_gather gradients"]);
    EXPECT_EQ(one["summed gradients"], 2 * planned["all_gather gradients"]);
  }
}

TEST(NodeGroups, ChangeNoBitOfARun) {
  for (const char* kind : {"muon", "soap"})
    for (const auto partition : {ParallelOptions::Partition::optimal, ParallelOptions::Partition::start_index,
                                 ParallelOptions::Partition::replicated})
      for (const int node_size : {2, 3, 4}) {  // 3: no sub-tree, one level; 4 of 6: a node of four and one of two
        TrainingCase one_node = node_case(kind), several = one_node;
        one_node.options.parallel.partition = several.options.parallel.partition = partition;
        several.options.parallel.node_size = node_size;
        const Trained a = train_together<float>(one_node, 3), b = train_together<float>(several, 3);
        EXPECT_EQ(a.loss, b.loss);
        EXPECT_EQ(a.norm, b.norm);
        EXPECT_EQ(a.weights, b.weights);
      }
}

TEST(NodeGroups, AreTakenForBulkDataWhereTheyContinueTheTree) {
  const auto levels = [](std::vector<int> node_of) {
    struct Group final : ForwardingCommunicator {
      explicit Group(std::vector<int> nodes)
          : ForwardingCommunicator(make_lone_communicator()), ranks(static_cast<int>(nodes.size())), mine(nodes) {}
      int size() const override { return ranks; }
      const NodeLevels* levels() const override { return &mine; }
      int ranks;
      NodeLevels mine;
    };
    return bulk_levels(Group(node_of)).nodes.size();
  };
  EXPECT_EQ(levels({0, 0, 1, 1}), 2u);
  EXPECT_EQ(levels({0, 0, 0, 0, 1, 1, 1}), 2u);  // the last one has fewer
  EXPECT_EQ(levels({0, 0, 0, 1, 1, 1}), 1u);     // three of a node
  EXPECT_EQ(levels({0, 1, 0, 1}), 1u);           // not neighbours
  EXPECT_EQ(levels({0, 0, 1, 1, 1, 1}), 1u);     // a larger one last
  EXPECT_EQ(levels({0, 0, 1, 2, 2}), 1u);        // a smaller one between
}

}  // namespace
}  // namespace sestina
