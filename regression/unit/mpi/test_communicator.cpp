// Communicators: collectives, texts, exchanges of uneven, empty and strided blocks, groups of groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/base/threads.hpp"
#include "parallel/step/step_exchange.hpp"
#include "regression/unit/mpi/ranks.hpp"

namespace sestina {
namespace {

// Ranks: Communicator 1 2 6

TEST(Communicator, ReducesOverAllRanks) {
  const int n = world().size(), me = world().rank();
  double values[3] = {1.0 + me, -1.0 * me, 2.0};
  world().all_reduce(values, 3, Reduction::sum);
  EXPECT_EQ(values[0], n * (n + 1) / 2.0);
  EXPECT_EQ(values[1], -n * (n - 1) / 2.0);
  EXPECT_EQ(values[2], 2.0 * n);
  double largest = me, least = me;
  world().all_reduce(&largest, 1, Reduction::max);
  world().all_reduce(&least, 1, Reduction::min);
  EXPECT_EQ(largest, n - 1);
  EXPECT_EQ(least, 0);
}

// More ranks than cores wait for one another's cores with each message. Before Linux 6.12
// they cannot be chosen, and their length is not told.
TEST(Communicator, RanksThatShareCoresHaveShortTimeSlices) {
  double shortened = 0;
  std::thread([&] {
    shorten_time_slices();
    shortened = time_slice_seconds();
  }).join();
  const bool shares = world().size() > static_cast<int>(process_cores().size());
  if (shortened > 0 && shortened < 0.4e-3) EXPECT_EQ(time_slice_seconds() == shortened, shares);
}

TEST(Communicator, CarriesTextsOfUnequalLength) {
  const std::vector<std::string> all = world().all_gather(std::string(static_cast<std::size_t>(world().rank()), 'x'));
  ASSERT_EQ(static_cast<int>(all.size()), world().size());
  for (int r = 0; r < world().size(); ++r)
    EXPECT_EQ(all[static_cast<std::size_t>(r)].size(), static_cast<std::size_t>(r));
  std::string word = world().rank() == world().size() - 1 ? "last" : "";
  world().broadcast(word, world().size() - 1);
  EXPECT_EQ(word, "last");
}

// Rank a sends b a value of its own in a strided block of a * (b + 1) elements (so rank 0 sends nothing).
TEST(Communicator, ExchangesUnevenStridedBlocksAgainAndAgain) {
  const int n = world().size(), me = world().rank();
  std::vector<std::vector<int>> out(static_cast<std::size_t>(n)), in(static_cast<std::size_t>(n));
  std::vector<Message> sends, receives;
  for (int peer = 0; peer < n; ++peer) {
    auto& to = out[static_cast<std::size_t>(peer)];
    auto& from = in[static_cast<std::size_t>(peer)];
    to.assign(static_cast<std::size_t>(2 * me * (peer + 1)), -1);  // every second column is sent
    from.assign(static_cast<std::size_t>(peer * (me + 1)), -1);
    sends.push_back({peer, {{to.data(), static_cast<std::size_t>(me * (peer + 1)), sizeof(int), 2 * sizeof(int)}}});
    receives.push_back({peer, {block_of(from.data(), from.size() * sizeof(int))}});
  }
  const auto exchange = world().make_exchange("test", sends, receives);
  for (int round = 0; round < 3; ++round) {
    for (int peer = 0; peer < n; ++peer)
      for (std::size_t i = 0; i < out[static_cast<std::size_t>(peer)].size(); ++i)
        out[static_cast<std::size_t>(peer)][i] = i % 2 == 0 ? 1000 * round + 100 * me + peer : -7;
    exchange->start();
    exchange->finish();
    for (int peer = 0; peer < n; ++peer)
      for (const int value : in[static_cast<std::size_t>(peer)]) EXPECT_EQ(value, 1000 * round + 100 * peer + me);
  }
  EXPECT_TRUE(exchange->test());
}

TEST(Communicator, SplitsIntoGroups) {
  const int n = world().size(), me = world().rank(), tp = n % 3 == 0 ? 3 : n % 2 == 0 ? 2 : 1;
  const auto group = world().split(me / tp, me), across = world().split(me % tp, me);
  EXPECT_EQ(group->size(), tp);
  EXPECT_EQ(group->rank(), me % tp);
  EXPECT_EQ(across->size(), n / tp);
  double sum = me;
  across->all_reduce(&sum, 1, Reduction::sum);
  double expected = 0;
  for (int r = me % tp; r < n; r += tp) expected += r;
  EXPECT_EQ(sum, expected);
  EXPECT_EQ(world().split_by_node()->size(), n);  // tests run on one machine
}

TEST(Communicator, FailsTogetherWithOneMessage) {
  const int last = world().size() - 1;
  EXPECT_NO_THROW(test_runtime()->together([] {}));
  try {
    test_runtime()->together([&] {
      if (world().rank() == last) fail(ExitCode::bad_data, "rank {} cannot read", last);
    });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_data);
    // Without a rank where all fail in the same way.
    const std::string whose = world().size() > 1 ? fmt::format("rank {}: ", last) : "";
    EXPECT_EQ(error.what(), whose + fmt::format("rank {} cannot read", last));
  }
  try {
    test_runtime()->together([] { fail(ExitCode::bad_deck, "no rank can"); });
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "no rank can");
  }
}

// Rank 1 sends late: the wait of rank 0 ends with a message that names it, and can be taken up again.
TEST(Communicator, GivesUpAfterTheTimeout) {
  if (world().size() == 1) return;  // nobody to wait for
  int value = world().rank();
  const std::vector<Message> to_first = {{0, {block_of(&value, sizeof value)}}},
                             from_second = {{1, {block_of(&value, sizeof value)}}};
  const auto exchange = world().make_exchange("gradients", world().rank() == 1 ? to_first : std::vector<Message>(),
                                              world().rank() == 0 ? from_second : std::vector<Message>());
  if (world().rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
  exchange->start();
  if (world().rank() == 0) {
    test_runtime()->set_timeout(0.2);
    try {
      exchange->finish();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::unavailable);
      EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("gradients"), std::string::npos) << error.what();
    }
    test_runtime()->set_timeout(60);
  }
  exchange->finish();
  if (world().rank() == 0) EXPECT_EQ(value, 1);
  world().barrier();
}

// A rank whose step fails leaves numbers of others under way: they may not arrive in memory that is somebody else's.
TEST(Communicator, NumbersUnderWayOutliveWhatGathersThem) {
  constexpr std::size_t numbers = 4096;  // more than is sent without being asked for
  const bool late = world().rank() == 1;
  auto gather = std::make_unique<LaggedGather>(world(), numbers, 2);
  std::fill_n(gather->mine(), numbers, world().rank());
  if (late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  gather->push();
  if (late) gather->pop();
  gather.reset();
  std::vector<double> others(4 * numbers, -1);  // as likely as anything to lie where the numbers lay
  world().barrier();
  world().barrier();
  for (const double value : others) ASSERT_EQ(value, -1);
}

}  // namespace
}  // namespace sestina
