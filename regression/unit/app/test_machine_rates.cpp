// What `bench --machine` writes is a deck that `plan` reads.
#include <gtest/gtest.h>

#include "../io/test_files.hpp"
#include "app/bench/machine_rates.hpp"
#include "app/start/run_deck.hpp"
#include "core/deck/deck.hpp"

namespace sestina {
namespace {

MachineOptions read_over(const std::string& first, const std::string& second) {
  const test::TemporaryFolder folder;
  test::write_bytes(folder / "first.toml", first);
  test::write_bytes(folder / "second.toml", second);
  DeckArguments arguments;
  arguments.files = {folder / "first.toml", folder / "second.toml"};
  Deck deck = layered_deck(arguments);
  const MachineOptions machine = MachineOptions::read(deck);
  EXPECT_NO_THROW(deck.finish());
  return machine;
}

// Four digits are kept: what is measured is no better known.
TEST(MachineRates, TheTableIsALayerOfADeck) {
  constexpr double digits = 5e-4;
  const MachineRates rates{1234.56, 0.0123456, 7, 250};
  const MachineOptions read = read_over("[machine]\npeak_tflops = 9\nmemory = 80\n", machine_table(rates, "anywhere"));
  EXPECT_NEAR(*read.peak_tflops, rates.peak_tflops, digits * rates.peak_tflops);
  EXPECT_NEAR(*read.memory_bandwidth, rates.memory_bandwidth, digits * rates.memory_bandwidth);
  EXPECT_EQ(read.disk_bandwidth, rates.disk_bandwidth);
  EXPECT_EQ(read.network_bandwidth, rates.network_bandwidth);
  EXPECT_EQ(read.memory, 80);  // of the deck below
}

TEST(MachineRates, UpdatesAreReadAsTheyWereWritten) {
  const std::vector<MeasuredUpdate> updates = {{"muon", true, 2048, 1024, 21.474836, 0.0125, 0},
                                               {"soap-muon", false, 64, 96, 0.5, 0.25, 1.5, "bf16", "fp32"}};
  const MachineOptions read = read_over(machine_table({1, 2, 3, {}}, "here", updates), "");
  EXPECT_FALSE(read.host.empty());
  ASSERT_EQ(read.update.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read.update[i].kind, updates[i].kind);
    EXPECT_EQ(read.update[i].bf16, updates[i].bf16);
    EXPECT_EQ(read.update[i].rows, updates[i].rows);
    EXPECT_EQ(read.update[i].cols, updates[i].cols);
    EXPECT_EQ(read.update[i].gflop, updates[i].gflop);
    EXPECT_EQ(read.update[i].seconds, updates[i].seconds);
    EXPECT_EQ(read.update[i].refresh_s, updates[i].refresh_s);
    EXPECT_EQ(read.update[i].matmul_precision, updates[i].matmul_precision);
    EXPECT_EQ(read.update[i].ns_precision, updates[i].ns_precision);
  }
}

TEST(MachineRates, OneRankHasNoNetwork) {
  const MachineOptions read = read_over(machine_table({1, 2, 3, {}}, "here"), "");
  EXPECT_FALSE(read.network_bandwidth);
  EXPECT_EQ(read.disk_bandwidth, 3);
}

}  // namespace
}  // namespace sestina
