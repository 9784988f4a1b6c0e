// `sestina train`: the start of a run, phase by phase, and the run.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "app/command/verbs.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/start/memory_check.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/run_data.hpp"
#include "app/train/run_start.hpp"
#include "app/train/step_report.hpp"
#include "app/train/trainer.hpp"
#include "app/verbs/train_start.hpp"
#include "app/watch/kernel_checks.hpp"
#include "app/watch/speed_check.hpp"
#include "core/optimizer/base/transfer_factors.hpp"
#include "core/optimizer/learning_rate_schedule.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/model/device/attention_fused.hpp"
#include "parallel/plan/update_table.hpp"
#include "parallel/stage/make_stages.hpp"

namespace sestina {
namespace {

// Says what runs where: in the log, and as the first line of this start in metrics.jsonl.
void report_start(const TrainStart& at, const StageMaker& stages, const std::string& data,
                  const std::vector<std::string>& slow, Metrics& metrics) {
  const Options& options = at.setup.options;
  const RunStart facts{at.setup.start_step,
                       at.setup.deck,
                       at.arguments.command_line,
                       stages.space(),
                       threads_of(Host()),
                       data,
                       precision_line(options.train.precision, stages.memory() == MemorySpace::host)};
  const RunLine line = run_line(facts, at.runtime);
  for (const auto& text : start_lines(options, facts, at.setup.planned, available_memory_bytes()))
    spdlog::info("{}", text);  // other ranks log warnings alone
  for (const auto& text : table_lines(update_table(at.setup.planned.plan))) spdlog::info("           {}", text);
  for (const auto& text : transfer_lines(options)) spdlog::info("{}", text);
  metrics.run(line);
  for (const auto& text : slow) {
    if (at.runtime.is_first()) spdlog::warn("{}", text);
    metrics.event(at.setup.start_step, "slow_machine", text);
  }
}

// Makes the setup that of a resume from the checkpoint of a rollback.
void go_back(TrainSetup& setup, const Rollback& rollback) {
  setup.rollback = rollback;
  setup.checkpoint = rollback.checkpoint;
  setup.start_step = rollback.step;
  setup.weights_only = setup.imported = setup.fork = false;
  setup.poll = {};  // the run goes on: signals are asked for at its next step
}

// Says what computes attention where there is a choice, which is known when the trainer has sized its workspaces.
void report_attention(const Options& options) {
  if (!may_have_attention(options)) return;
  if (options.data.mask_documents)
    spdlog::info("attention  our own kernels: data.mask_documents");
  else if (options.optimizer.qk_clip > 0)
    spdlog::info("attention  our own kernels forward: optimizer.qk_clip; backward {}", fused_attention::description());
  else
    spdlog::info("attention  {}", fused_attention::description());
}

// Trains until the run ends, again from a checkpoint after each rollback.
ExitCode run_to_end(const TrainStart& at, const StageMaker& stages, const TrainData& data, Metrics& metrics) {
  const RunOptions& run = at.setup.options.run;
  for (TrainSetup now = at.setup;;) {
    Trainer trainer(stages, now, at.runtime, *data.training, data.validation.get(), at.stop, metrics);
    if (!now.rollback) report_attention(now.options);
    at.runtime.set_timeout(run.abort_timeout);  // from here on no rank has long to do by itself
    const ExitCode code = trainer.run();
    if (!trainer.rollback()) return code;
    at.runtime.set_timeout(run.start_timeout);
    go_back(now, *trainer.rollback());
  }
}

// The whole start of a run on its ranks, which have found each other, phase by phase in this order; then the run.
ExitCode train_on_ranks(const TrainArguments& arguments, Runtime& runtime, Stop& stop) {
  TrainStart at(arguments, runtime, stop);
  compare_programs(at);
  read_run_dir(at);
  finish_staged_saves(at);
  find_checkpoint(at);
  resolve_deck(at);
  const std::unique_ptr<RunDir> run_dir = open_run_dir(at);  // locked until the run ends
  open_log(at);
  const std::unique_ptr<Metrics> metrics = open_metrics(at);
  log_deck(at);
  const TrainData data = open_data(at);
  const Options& options = at.setup.options;
  const auto kokkos = start_kokkos(runtime, options.run.threads, arguments.kokkos, options.optimizer.refresh_workers(),
                                   [&](const char* name, const std::function<void()>& f) { at.phases.phase(name, f); });
  runtime.begin_phase("measuring the machine");
  const std::vector<std::string> slow = check_speed(options.run, runtime);
  runtime.begin_phase("checking the kernels");
  check_kernels_at_start(options, runtime);
  runtime.begin_phase("building the model");
  const std::unique_ptr<StageMaker> stages = make_stages(options.run.space, options.train.precision);
  report_start(at, *stages, data.training->description(), slow, *metrics);
  return run_to_end(at, *stages, data, *metrics);
}

// Parses, merges and validates everything, and prints the resolved deck. It knows no ranks.
int print_deck(const TrainArguments& arguments) {
  TrainSetup setup;
  setup.run_dir = find_run_dir(arguments);
  setup.checkpoint = find_start_checkpoint(arguments, setup.run_dir, setup.warnings, {});
  std::string stored;
  if (!setup.checkpoint.empty()) stored = CheckpointReader(setup.checkpoint, false).run().deck;
  DeckArguments layers = arguments.deck;
  layers.model_is_stored = holds_hf_model(setup.checkpoint);
  Deck deck = layered_deck(layers, stored, setup.checkpoint);
  const Options options = read_trainable(deck);
  deck.finish();
  if (!options.model.from_hf.empty()) require_byte_vocabulary(options);
  if (const std::string defect = byte_text_defect(options); !defect.empty())
    fmt::print(stderr, "sestina: warning: {}\n", defect);
  for (const std::string& warning :
       {short_run_warning(options.run, options.schedule), element_rule_warning(options.optimizer, options.schedule)})
    if (!warning.empty()) fmt::print(stderr, "sestina: warning: {}\n", warning);
  std::fputs(deck.dump().c_str(), stdout);
  for (const std::string& line : transfer_lines(options)) fmt::print("# {}\n", line);
  if (options.optimizer.transfer.on())
    for (const std::string& line : table_lines(update_table(make_plan(options)))) fmt::print("# {}\n", line);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_train(const TrainArguments& arguments, const RankSource& ranks) {
  if (arguments.dry_run) {
    release_signals();
    return print_deck(arguments);
  }
  Stop stop(arguments.walltime);
  const auto stopped_code = [&]() -> int {
    if (!stop.told_to_stop()) return 0;
    const bool saved = !glance_at_checkpoint(arguments).empty();
    return static_cast<int>(saved ? ExitCode::stopped_saved : ExitCode::stopped_unsaved);
  };
  Runtime runtime(ranks, find_start_timeout(arguments.deck), stopped_code);
  return run_on_ranks(runtime, [&] {
    try {
      return static_cast<int>(train_on_ranks(arguments, runtime, stop));
    } catch (const Error& error) {
      if (error.code() != ExitCode::stopped_saved && error.code() != ExitCode::stopped_unsaved) throw;
      if (runtime.is_first()) spdlog::info("{}", error.what());
      return static_cast<int>(error.code());
    }
  });
}

}  // namespace sestina
