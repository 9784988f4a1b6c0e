// After two warm-up steps a step of the trainer allocates nothing: no Kokkos view, no operator new on the compute
// thread, with metrics, log line and data prefetch going on.
#include <gtest/gtest.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "app/start/all_ranks.hpp"
#include "app/train/trainer.hpp"
#include "core/deck/deck.hpp"
#include "parallel/stage/stages_of.hpp"
#include "regression/unit/allocation_counter.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

std::string deck_text(const std::string& precision, const std::string& linear, int state_bits,
                      const std::string& family) {
  return R"(
[run]
steps = 8
[model]
family = )" +
         family + R"(
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 2
vocab_size = 256
[data]
sequence_length = 16
[[data.source]]
format = "text"
path = "text.txt"
[train]
global_batch = 4
micro_batch = 2
precision = ")" +
         precision + R"("
[metrics]
every = 2
[optimizer]
state_bits = )" +
         std::to_string(state_bits) + R"(
[model.linear]
)" + linear;
}

template <class T>
void expect_no_allocation(const std::string& precision, const std::string& linear = "form = \"dense\"\n",
                          int state_bits = 32, const std::string& family = "\"llama\"") {
  const fs::path folder = fs::temp_directory_path() / ("sestina_step_" + precision + std::to_string(getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "text.txt") << std::string(4000, 'x') + "some other words";
  auto logger = spdlog::basic_logger_st("step_" + precision, (folder / "log.txt").string());
  spdlog::set_default_logger(logger);

  Deck deck;
  deck.add_text(deck_text(precision, linear, state_bits, family), "test deck", folder.string());
  TrainSetup setup;
  setup.options = Options::read(deck);
  setup.planned = plan_that_fits(setup.options);
  deck.finish();
  setup.run_dir = folder.string();
  {
    Stop stop(setup.options.run, setup.run_dir);
    Metrics metrics(setup.run_dir, false);
    const SampleSet samples(setup.options.data, Split::train, 256, 1, nullptr);
    Runtime runtime(all_ranks(), 60);
    Trainer trainer(StagesOf<Host, T>(), setup, runtime, samples, nullptr, stop, metrics);
    for (int i = 0; i < 2; ++i) ASSERT_EQ(trainer.step(), StepOutcome::updated);
    AllocationCounter counter;
    for (int i = 0; i < 4; ++i) trainer.step();
    EXPECT_EQ(counter.heap(), 0) << counter.places();
    EXPECT_EQ(counter.kokkos(), 0) << counter.places();
  }
  spdlog::drop("step_" + precision);
  fs::remove_all(folder);
}

TEST(StepAllocation, FloatStepAllocatesNothing) { expect_no_allocation<float>("fp32"); }
TEST(StepAllocation, Bf16StepAllocatesNothing) { expect_no_allocation<bf16>("bf16"); }
TEST(StepAllocation, StepWithMomentsInEightBitsAllocatesNothing) {
  expect_no_allocation<float>("fp32", "form = \"dense\"\n", 8);
  expect_no_allocation<bf16>("bf16", "form = \"dense\"\n", 8);
}
// Each expert is chosen by all, so that its products keep their shapes: a new one is prepared when it is first seen.
TEST(StepAllocation, StepOfExpertsAllocatesNothing) {
  const std::string family =
      "\"qwen3_moe\"\nhead_dim = 16\nnum_experts = 3\nnum_experts_per_tok = 3\nmoe_intermediate_size = 24";
  expect_no_allocation<float>("fp32", "form = \"dense\"\n", 32, family);
}
// Between merges, which draw permutations in host memory.
TEST(StepAllocation, StepInAnotherFormOfWeightsAllocatesNothing) {
  for (const char* variant : {"fast", "mem", "xq"})
    expect_no_allocation<float>("fp32", fmt::format("form = \"poet-x\"\nblock_size = 8\nvariant = \"{}\"\n", variant));
  expect_no_allocation<bf16>("bf16", "form = \"poet-x\"\nblock_size = 8\n");
  expect_no_allocation<float>("fp32", "form = \"lora\"\n");
}

}  // namespace
}  // namespace sestina
