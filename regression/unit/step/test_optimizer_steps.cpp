// Every matrix optimizer inside a real training run: a step allocates nothing, its bits do not depend on the number of
// threads in deterministic mode, and a run that is interrupted and resumed ends with the same bits.
#include <gtest/gtest.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "app/train/trainer.hpp"
#include "core/deck/deck.hpp"
#include "io/report/history.hpp"
#include "regression/unit/allocation_counter.hpp"
#include "regression/unit/kind_names.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

class OptimizerSteps : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sestina_optimizer_" + GetParam() + std::to_string(getpid()));
    fs::create_directories(folder_);
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 800; ++i) text << "word " << i * i % 97 << ' ';
    spdlog::set_default_logger(spdlog::basic_logger_st("optimizer", (folder_ / "log.txt").string()));
  }
  void TearDown() override {
    spdlog::drop("optimizer");
    fs::remove_all(folder_);
  }

  TrainSetup setup(int steps, const std::string& run, const std::string& precision) const {
    Deck deck;
    deck.add_text(
        "[model]\nfamily = \"llama\"\nhidden_size = 32\nintermediate_size = 48\nnum_hidden_layers = 2\n"
        "num_attention_heads = 2\nvocab_size = 256\n[data]\nsequence_length = 16\n"
        "[[data.source]]\nformat = \"text\"\npath = \"text.txt\"\n"
        "[run]\ndeterministic = true\nsteps = " +
            std::to_string(steps) + "\n[train]\nglobal_batch = 4\nmicro_batch = 2\nprecision = \"" + precision +
            "\"\n[schedule]\nkind = \"constant\"\nlr = 1e-2\n[metrics]\nevery = 2\n[optimizer]\nkind = \"" +
            GetParam() + "\"\n" +
            (find_matrix_kind(GetParam())->refresh_every > 0 ? "[optimizer.refresh]\nevery = 2\n" : ""),
        "test deck", folder_.string());
    TrainSetup setup;
    setup.options = Options::read(deck);
    deck.finish();
    setup.run_dir = (folder_ / run).string();
    setup.deck = deck.dump();
    fs::create_directories(setup.run_dir);
    return setup;
  }

  // Trains and returns the bytes of all weights and state.
  std::string train(const TrainSetup& setup, const Host& exec) const {
    Stop stop(setup.options.run, setup.run_dir);
    Metrics metrics(setup.run_dir, false);
    const SampleSet samples(setup.options.data, Split::train, 256, 1, nullptr);
    Runtime runtime(60);
    Trainer<Host, float> trainer(exec, setup, runtime, samples, nullptr, stop, metrics);
    EXPECT_EQ(trainer.run(), ExitCode::done);
    const CheckpointReader reader(newest_complete(setup.run_dir, true, [](const std::string&) {}), true);
    std::string bytes;
    for (const auto& entry : reader.entries()) {
      StateField field{entry.path, entry.dtype, entry.shape, 0, entry.shape.at(0)};
      std::string data(field.bytes(), '\0');
      reader.read(field, data.data());
      bytes += entry.path + data;
    }
    return bytes;
  }

  template <class T>
  void expect_no_allocation(const std::string& precision) const {
    const TrainSetup run = setup(9, "allocation_" + precision, precision);
    Stop stop(run.options.run, run.run_dir);
    Metrics metrics(run.run_dir, false);
    const SampleSet samples(run.options.data, Split::train, 256, 1, nullptr);
    Runtime runtime(60);
    Trainer<Host, T> trainer(Host{}, run, runtime, samples, nullptr, stop, metrics);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(trainer.step());  // the second refresh is in it
    AllocationCounter counter;
    for (int i = 0; i < 4; ++i) trainer.step();
    EXPECT_EQ(counter.heap(), 0) << counter.places();
    EXPECT_EQ(counter.kokkos(), 0) << counter.places();
  }

  fs::path folder_;
};

TEST_P(OptimizerSteps, AllocateNothing) {
  expect_no_allocation<float>("fp32");
  expect_no_allocation<bf16>("bf16");
}

TEST_P(OptimizerSteps, BitsDoNotDependOnTheNumberOfThreads) {
  EXPECT_EQ(train(setup(5, "one", "fp32"), Host(1)), train(setup(5, "two", "fp32"), Host(2)));
}

TEST_P(OptimizerSteps, ResumeToTheSameBits) {
  const std::string whole = train(setup(6, "whole", "fp32"), Host());
  train(setup(3, "part", "fp32"), Host());
  TrainSetup rest = setup(6, "part", "fp32");
  rest.checkpoint = newest_complete(rest.run_dir, false, [](const std::string&) {});
  EXPECT_EQ(train(rest, Host()), whole);
}

// A refresh every second update: what is used is at most one update old, and the lines say so.
TEST_P(OptimizerSteps, MetricsTellTheAgeOfPreconditioners) {
  const TrainSetup run = setup(8, "age", "fp32");
  train(run, Host());
  std::int64_t most = 0;
  for (const TrainLine& line : read_history(run.run_dir).train) most = std::max(most, line.preconditioner_age_max);
  EXPECT_EQ(most, find_matrix_kind(GetParam())->refresh_every > 0 ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerSteps, testing::ValuesIn(kind_names()), kind_test_name);

}  // namespace
}  // namespace sestina
