// Gradients to their owners, against the plain sum over all ranks, to the bit; the memory that it takes; and the order
// of what ranks start, which no delay changes.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/stage/owner_exchange.hpp"
#include "regression/unit/mpi/training_rig.hpp"

namespace sestina {
namespace {

using Gradients = Kokkos::View<float*, Host::memory_space>;

float gradient_of(int rank, std::size_t i) {
  return std::sin(static_cast<float>(i) * 0.37F + static_cast<float>(rank) * 1.9F) *
         std::pow(10.0F, static_cast<float>(static_cast<int>(i % 7) - 3));
}

// A tree over ranks: (0 + 1) + (2 + 3), ...; the right side of the last pairs may be missing.
float plain_sum(int ranks, std::size_t i) {
  std::vector<float> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(gradient_of(r, i));
  while (parts.size() > 1) {
    std::vector<float> next;
    for (std::size_t p = 0; p < parts.size(); p += 2)
      next.push_back(p + 1 < parts.size() ? parts[p] + parts[p + 1] : parts[p]);
    parts = next;
  }
  return parts[0];
}

// Buckets of odd sizes: cut evenly, owned by one rank, by the last two, by some at odd places, and by nobody.
GradientBuckets odd_buckets(int ranks) {
  GradientBuckets all;
  std::int64_t begin = 0;
  int block = 9;
  for (const std::int64_t elements : {1009, 997, 3, 501, 2003, 1, 770, 997}) {
    const int kind = block % 5;
    BucketLayout bucket;
    bucket.elements = elements;
    bucket.block = block - (block % 3 == 0 ? 1 : 0);  // two of one block
    for (int r = 0; kind != 4 && r <= ranks; ++r)
      bucket.cut.push_back(kind == 0   ? elements * r / ranks
                           : kind == 1 ? (r == 0 ? 0 : elements)
                           : kind == 2 ? (r < ranks - 1 ? 0 : elements * (r - ranks + 2) / 2)
                                       : std::min<std::int64_t>(elements, 211 * r * r));
    if (kind == 3) bucket.cut.back() = elements;
    all.begin.push_back(begin);
    begin += elements;
    all.buckets.push_back(bucket);
    --block;
  }
  all.begin.push_back(begin);
  return all;
}

void expect_plain_sums(Communicator& group, std::size_t small_place, const std::string& what, bool by_library = false) {
  const GradientBuckets all = odd_buckets(group.size());
  Gradients gradients("gradients", static_cast<std::size_t>(all.begin.back()));
  GradientReduce<Host> reduce(Host(), group, all, gradients, {}, small_place, nullptr, by_library);
  for (int step = 0; step < 2; ++step) {
    for (std::size_t i = 0; i < gradients.extent(0); ++i) gradients(i) = gradient_of(group.rank(), i);
    for (int block = 9; block >= 0; --block) reduce.block_done(block);
    reduce.finish();
    int wrong = 0;
    for (std::size_t b = 0; b < all.buckets.size(); ++b) {
      const BucketLayout& bucket = all.buckets[b];
      const auto r = static_cast<std::size_t>(group.rank());
      const std::int64_t from = bucket.cut.empty() ? 0 : bucket.cut[r];
      const std::int64_t to = bucket.cut.empty() ? bucket.elements : bucket.cut[r + 1];
      for (std::int64_t i = all.begin[b] + from; i < all.begin[b] + to; ++i) {
        const auto at = static_cast<std::size_t>(i);
        wrong += gradients(at) != plain_sum(group.size(), at) ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0) << what << ", rank " << group.rank() << ", step " << step;
  }
}

// Ranks: GradientReduceSums 2 3 4 5 8

TEST(GradientReduceSums, AreThePlainSumOfAllRanks) {
  for (const int node_size : {1, 2, 3, 4}) {
    const auto group = with_node_groups(world().split(0, world().rank()), node_size);
    for (const std::size_t small_place : {std::size_t{0}, small_place_elements})
      expect_plain_sums(*group, small_place, fmt::format("nodes of {}, places of {}", node_size, small_place));
  }
}

// A group whose library makes sums and gathers as a whole, as NCCL does; on a host by calls that end at once. Its sums
// are those of the tree, so that they can be compared by their bits.
struct LibraryCounts {
  int messages = 0, sums = 0, gathers = 0;
};
class LibraryGroup final : public ForwardingCommunicator {
 public:
  LibraryGroup(std::unique_ptr<Communicator> group, LibraryCounts& counts)
      : ForwardingCommunicator(std::move(group)), counts_(counts) {}
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    ++counts_.messages;
    return ForwardingCommunicator::make_exchange(name, std::move(sends), std::move(receives));
  }
  std::unique_ptr<Exchange> make_reduce_scatter(const char*, const std::vector<Block>& owned) override {
    return std::make_unique<AtOnce>([this, owned] {
      for (std::size_t r = 0; r < owned.size(); ++r) {
        const std::size_t n = owned[r].bytes() / sizeof(float);
        auto* const mine = static_cast<float*>(owned[r].data);
        std::vector<float> all(n * owned.size());
        inner_->all_gather(mine, n * sizeof(float), all.data());
        for (std::size_t width = 1; width < owned.size(); width *= 2)
          for (std::size_t part = 0; part + width < owned.size(); part += 2 * width)
            for (std::size_t i = 0; i < n; ++i) all[part * n + i] += all[(part + width) * n + i];
        if (r == static_cast<std::size_t>(rank())) std::copy_n(all.begin(), n, mine);
      }
      ++counts_.sums;
    });
  }
  std::unique_ptr<Exchange> make_all_gather(const char*, const std::vector<std::vector<Block>>& owned) override {
    return std::make_unique<AtOnce>([this, owned] {
      for (std::size_t r = 0; r < owned.size(); ++r)
        for (const Block& block : owned[r])
          if (block.bytes() > 0) inner_->broadcast(block.data, block.bytes(), static_cast<int>(r));
      ++counts_.gathers;
    });
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<LibraryGroup>(inner_->split(color, key), counts_);
  }

 private:
  struct AtOnce final : Exchange {
    explicit AtOnce(std::function<void()> made) : work(std::move(made)) {}
    void start() override { work(); }
    bool test() override { return true; }
    void finish() override {}
    std::function<void()> work;
  };
  LibraryCounts& counts_;
};

TEST(GradientReduceSums, OfALibraryTakeNoMessages) {
  LibraryCounts counts;
  LibraryGroup group(world().split(0, world().rank()), counts);
  expect_plain_sums(group, 0, "by a library", true);
  const GradientBuckets all = odd_buckets(group.size());
  const auto unowned =
      std::count_if(all.buckets.begin(), all.buckets.end(), [](const auto& b) { return b.cut.empty(); });
  EXPECT_EQ(counts.messages, 0);
  EXPECT_EQ(counts.sums, 2 * static_cast<int>(all.buckets.size()));  // of two steps
  EXPECT_EQ(counts.gathers, 2 * static_cast<int>(unowned));
  expect_plain_sums(group, 0, "by messages", false);
  EXPECT_GT(counts.messages, 0);
}

// Whole runs: what is not deterministic goes by the library, what is by messages.
TEST(GradientReduceSums, OfALibraryTrainAsMessagesDo) {
  for (const bool deterministic : {false, true}) {
    TrainingCase run = training_case("muon");
    run.options.run.deterministic = deterministic;
    run.options.parallel.dp = world().size();
    run.options.train.global_batch = 2 * world().size();
    LibraryCounts counts;
    LibraryGroup group(world().split(0, world().rank()), counts);
    const auto plain = world().split(0, world().rank());
    const auto losses = train_on<float>(group, run, 3).loss, wanted = train_on<float>(*plain, run, 3).loss;
    ASSERT_EQ(losses.size(), wanted.size());
    for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], wanted[i], 1e-6 * std::abs(wanted[i]));
    EXPECT_EQ(counts.sums > 0, !deterministic);
    EXPECT_EQ(counts.gathers > 0, !deterministic);
  }
}

TEST(GradientReduceSums, TakeTheMemoryThatThePlanSays) {
  static double allocated = 0;
  for (const int node_size : {1, 2}) {
    const auto group = with_node_groups(world().split(0, world().rank()), node_size);
    const GradientBuckets all = odd_buckets(group->size());
    Gradients gradients("gradients", static_cast<std::size_t>(all.begin.back()));
    const BucketReduction planned = bucket_reduction(all.buckets, bulk_levels(*group), false, 0);
    allocated = 0;
    Kokkos::Tools::Experimental::set_allocate_data_callback(
        [](Kokkos::Tools::SpaceHandle, const char* label, const void*, std::uint64_t n) {
          if (std::string(label) == "sestina::received") allocated += static_cast<double>(n);
        });
    const GradientReduce<Host> reduce(Host(), *group, all, gradients, {}, 0);
    Kokkos::Tools::Experimental::set_allocate_data_callback(nullptr);
    const auto bytes = static_cast<double>(planned.bytes(group->rank()));
    EXPECT_GE(allocated, bytes);
    EXPECT_LE(allocated, bytes + 256.0 * most_chunk_places);  // Kokkos's own, and its alignment
    EXPECT_LE(bytes, 2 * 2003 * sizeof(float));               // of the largest bucket
  }
}

// Writes down what a rank starts. A late rank never sees anything come before it waits for it; the others wait a while
// for what they ask for.
class OrderCommunicator final : public ForwardingCommunicator {
 public:
  OrderCommunicator(std::unique_ptr<Communicator> group, std::string label, bool late, std::vector<std::string>& order)
      : ForwardingCommunicator(std::move(group)), label_(std::move(label)), late_(late), order_(order) {}
  std::unique_ptr<Exchange> make_exchange(const char* name, std::vector<Message> sends,
                                          std::vector<Message> receives) override {
    return std::make_unique<Started>(inner_->make_exchange(name, std::move(sends), std::move(receives)),
                                     label_ + " " + name + " " + std::to_string(made_++), late_, order_);
  }
  void wait(const char* name) override {
    order_.push_back(label_ + " " + name);
    inner_->wait(name);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<OrderCommunicator>(inner_->split(color, key), label_ + "." + std::to_string(splits_++),
                                               late_, order_);
  }

 private:
  struct Started final : Exchange {
    Started(std::unique_ptr<Exchange> exchange, std::string what, bool late, std::vector<std::string>& order)
        : exchange(std::move(exchange)), what(std::move(what)), late(late), order(order) {}
    void start() override {
      order.push_back(what);
      exchange->start();
    }
    bool test() override {
      for (int i = 0; i < 2000 && !late; ++i) {
        if (exchange->test()) return true;
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      }
      return false;
    }
    void finish() override { exchange->finish(); }
    std::unique_ptr<Exchange> exchange;
    std::string what;
    bool late;
    std::vector<std::string>& order;
  };

  std::string label_;
  bool late_;
  std::vector<std::string>& order_;
  int made_ = 0, splits_ = 0;
};

// Ranks: OrderOfOperations 4

TEST(OrderOfOperations, IsTheSameOnAllRanksWhateverArrivesFirst) {
  using Shard = ParallelOptions::Shard;
  using Partition = ParallelOptions::Partition;
  for (const auto& [partition, shard] :
       {std::pair(Partition::optimal, Shard::state), std::pair(Partition::replicated, Shard::state),
        std::pair(Partition::optimal, Shard::gradients), std::pair(Partition::optimal, Shard::weights)})
    for (const int tp : {1, 2})
      for (int late = 0; late < 2; ++late) {
        TrainingCase run = training_case("muon");
        run.options.parallel.shard = shard;
        run.options.train.global_batch = 2 * world().size();
        run.options.parallel.tp = tp;
        run.options.parallel.dp = world().size() / tp;
        run.options.parallel.node_size = tp == 1 ? 2 : 0;
        run.options.parallel.partition = partition;
        run.options.parallel.bucket_elements = shard == Shard::state ? 5000 : 0;
        std::vector<std::string> order;
        OrderCommunicator group(world().split(0, world().rank()), "all", world().rank() == late, order);
        train_on<float>(group, run, 3);
        std::string mine;
        for (const std::string& what : order) mine += what + "\n";
        EXPECT_GT(order.size(), 20u);
        for (const std::string& other : world().all_gather(mine)) EXPECT_EQ(other, mine) << "rank " << late << " late";
      }
}

// Ranks: LevelsOfWrappedGroups 4

// Groups that carry device memory forward to the group of the nodes: the levels stay known.
TEST(LevelsOfWrappedGroups, AreThoseOfTheGroupInside) {
  struct Carrier final : ForwardingCommunicator {
    using ForwardingCommunicator::ForwardingCommunicator;
  };
  Carrier carrier(with_node_groups(world().split(0, world().rank()), 2));
  ASSERT_NE(carrier.levels(), nullptr);
  EXPECT_EQ(bulk_levels(carrier).nodes.size(), 2u);
  expect_plain_sums(carrier, 0, "carried");
}

}  // namespace
}  // namespace sestina
