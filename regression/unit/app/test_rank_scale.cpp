// What ranks say to each other before and between steps, with up to 4096 acted ones: calls do not grow with the ranks,
// bytes and messages of a rank no faster than they do, and its time no faster than N log N.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "acted_ranks.hpp"
#include "app/train/rank_agreement.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/plan/rank_report.hpp"

namespace sestina {
namespace {

using Act = std::function<void(std::unique_ptr<Communicator>)>;

struct Busiest {
  SaidByRank said;  // the most of any rank, each number by itself
  double seconds;   // of processor time, of a rank in the mean
};

Busiest act(int ranks, const Act& what) {
  ActedRanks acted;
  const std::clock_t start = std::clock();
  const auto all = acted.run(ranks, what);
  Busiest busiest{{}, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / ranks};
  for (const SaidByRank& one : all) {
    busiest.said.calls = std::max(busiest.said.calls, one.calls);
    busiest.said.buffer_bytes = std::max(busiest.said.buffer_bytes, one.buffer_bytes);
    busiest.said.messages = std::max(busiest.said.messages, one.messages);
    busiest.said.message_bytes = std::max(busiest.said.message_bytes, one.message_bytes);
  }
  return busiest;
}

// Sixteen times the ranks: sixteen times the bytes and messages (of all others) at most, and the same calls. Time: four
// times the ranks, less than nine times as much (with a logarithm five, a square would take sixteen).
void expect_little_growth(const Act& what, int most = 4096) {
  const Busiest few = act(most / 16, what), many = act(most, what);
  EXPECT_EQ(many.said.calls, few.said.calls);
  EXPECT_LE(many.said.buffer_bytes, 17 * few.said.buffer_bytes);
  EXPECT_LE(many.said.messages, 17 * few.said.messages);
  EXPECT_LE(many.said.message_bytes, 17 * few.said.message_bytes);
  // A neighbour on the machine takes caches away for a while: the least of a few readings is what the code needs.
  double quarter = act(most / 4, what).seconds, whole = many.seconds;
  for (int again = 0; again < 4 && whole >= 9 * quarter + 20e-6; ++again) {
    whole = std::min(whole, act(most, what).seconds);
    quarter = std::max(quarter, act(most / 4, what).seconds);
  }
  EXPECT_LT(whole, 9 * quarter + 20e-6) << quarter << " s of a rank of a quarter of them";
}

std::vector<Statement> statements(int odd, int rank) {
  return {{"model.hidden_size", rank == odd ? "65" : "64", "", true}, {"program version", "1"}};
}

TEST(RankScale, StatementsThatAgree) {
  expect_little_growth([](std::unique_ptr<Communicator> world) {
    require_agreement(*world, statements(-1, world->rank()), ExitCode::bad_deck);
  });
}

// All of them keep what they gathered while one speaks: here that is memory of one machine, so fewer are acted.
TEST(RankScale, StatementsOfOneRankThatDiffers) {
  expect_little_growth(
      [](std::unique_ptr<Communicator> world) {
        try {
          require_agreement(*world, statements(world->size() - 3, world->rank()), ExitCode::bad_deck);
          FAIL() << "not found";
        } catch (const AgreedError& error) {
          EXPECT_NE(std::string(error.what()).find(fmt::format("65 on rank {}", world->size() - 3)), std::string::npos);
        }
      },
      1024);
}

TEST(RankScale, PhasesThatSucceed) {
  expect_little_growth([](std::unique_ptr<Communicator> world) { agree(*world, [] {}); });
}

TEST(RankScale, PhasesInWhichOneRankFails) {
  expect_little_growth([](std::unique_ptr<Communicator> world) {
    const int bad = world->size() / 2;
    try {
      agree(*world, [&] {
        if (world->rank() == bad) fail(ExitCode::io_error, "no room");
      });
      FAIL() << "not told";
    } catch (const AgreedError& error) {
      EXPECT_EQ(std::string(error.what()), fmt::format("rank {}: no room", bad));
    }
  });
}

// What the trainer asks in each step, in a group of nodes of eight ranks: set up once, then asked.
TEST(RankScale, WishesOverNodes) {
  const auto ask = [](int times) {
    return [times](std::unique_ptr<Communicator> world) {
      const auto group = with_node_groups(std::move(world), 8);
      for (int i = 0; i < times; ++i) {
        Votes votes{.stop = group->rank() == 77 ? 1.0 : 0.0};
        group->all_reduce(&votes.stop, sizeof votes / sizeof(double), Reduction::max);
        EXPECT_EQ(votes.stop, 1);
      }
    };
  };
  expect_little_growth(ask(10));
  EXPECT_EQ(act(512, ask(2)).said.calls - act(512, ask(1)).said.calls, 3);  // in the node, of leaders, in the node
}

}  // namespace
}  // namespace sestina
