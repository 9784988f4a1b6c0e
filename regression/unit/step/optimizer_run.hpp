// One small training run for each matrix optimizer: in memory but for its folder.
#pragma once
#include <gtest/gtest.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "app/start/all_ranks.hpp"
#include "app/train/trainer.hpp"
#include "core/deck/deck.hpp"
#include "io/report/history.hpp"
#include "parallel/stage/stages_of.hpp"
#include "regression/unit/allocation_counter.hpp"
#include "regression/unit/kind_names.hpp"

namespace sestina {

namespace fs = std::filesystem;

class OptimizerRun : public testing::TestWithParam<std::string> {
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

  // refresh: its section of the deck; empty: every second update, inline.
  TrainSetup setup(int steps, const std::string& run, const std::string& precision,
                   const std::string& refresh = "") const {
    const bool refreshes = find_matrix_kind(GetParam())->refresh_every > 0;
    Deck deck;
    deck.add_text(
        "[model]\nfamily = \"llama\"\nhidden_size = 32\nintermediate_size = 48\nnum_hidden_layers = 2\n"
        "num_attention_heads = 2\nvocab_size = 256\n[data]\nsequence_length = 16\n"
        "[[data.source]]\nformat = \"text\"\npath = \"text.txt\"\n"
        "[run]\ndeterministic = true\nsteps = " +
            std::to_string(steps) + "\n[train]\nglobal_batch = 4\nmicro_batch = 2\nprecision = \"" + precision +
            "\"\n[schedule]\nkind = \"constant\"\nlr = 1e-2\n[metrics]\nevery = 2\n[optimizer]\nkind = \"" +
            GetParam() + "\"\n" + (refresh.empty() && refreshes ? "[optimizer.refresh]\nevery = 2\n" : refresh),
        "test deck", folder_.string());
    TrainSetup setup;
    setup.options = Options::read(deck);
    deck.finish();
    setup.planned = plan_that_fits(setup.options);
    setup.run_dir = (folder_ / run).string();
    setup.deck = deck.dump();
    fs::create_directories(setup.run_dir);
    return setup;
  }

  // Trains and returns the bytes of all weights and state, by their place in the checkpoint.
  std::map<std::string, std::string> train_parts(const TrainSetup& setup, const Host& exec) const {
    Stop stop(setup.options.run, setup.run_dir);
    Metrics metrics(setup.run_dir, false);
    const SampleSet samples(setup.options.data, Split::train, 256, 1, nullptr);
    Runtime runtime(all_ranks(), 60);
    Trainer trainer(StagesOf<Host, float>(exec), setup, runtime, samples, nullptr, stop, metrics);
    EXPECT_EQ(trainer.run(), ExitCode::done);
    const CheckpointReader reader(newest_complete(setup.run_dir, true, [](const std::string&) {}), true);
    std::map<std::string, std::string> parts;
    for (const auto& entry : reader.entries()) {
      StateField field{entry.path, entry.dtype, entry.shape, 0, entry.shape.at(0)};
      std::string data(field.bytes(), '\0');
      reader.read(field, data.data());
      parts[entry.path] = data;
    }
    return parts;
  }
  std::string train(const TrainSetup& setup, const Host& exec) const {
    std::string bytes;
    for (const auto& [path, data] : train_parts(setup, exec)) bytes += path + data;
    return bytes;
  }
  static std::string weights_of(const std::map<std::string, std::string>& parts) {
    std::string bytes;
    for (const auto& [path, data] : parts)
      if (path.starts_with("/model/")) bytes += path + data;
    return bytes;
  }

  // In `counted` steps after `warm` ones.
  template <class T>
  void expect_no_allocation(const TrainSetup& run, int warm, int counted) const {
    Stop stop(run.options.run, run.run_dir);
    Metrics metrics(run.run_dir, false);
    const SampleSet samples(run.options.data, Split::train, 256, 1, nullptr);
    Runtime runtime(all_ranks(), 60);
    Trainer trainer(StagesOf<Host, T>(), run, runtime, samples, nullptr, stop, metrics);
    for (int i = 0; i < warm; ++i) ASSERT_EQ(trainer.step(), StepOutcome::updated);
    AllocationCounter counter;
    for (int i = 0; i < counted; ++i) trainer.step();
    EXPECT_EQ(counter.heap(), 0) << counter.places();
    EXPECT_EQ(counter.kokkos(), 0) << counter.places();
  }

  fs::path folder_;
};

}  // namespace sestina
