// `sestina train`: resolves deck, checkpoint, data and run directory, then trains.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include "app/command/verbs.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/start/log_file.hpp"
#include "app/start/memory_check.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/start/run_dir.hpp"
#include "app/start/start_up.hpp"
#include "app/train/rank_agreement.hpp"
#include "app/train/run_data.hpp"
#include "app/train/run_start.hpp"
#include "app/train/step_report.hpp"
#include "app/train/trainer.hpp"
#include "app/watch/restarts.hpp"
#include "app/watch/speed_check.hpp"
#include "core/deck/model_config.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/base/transfer_factors.hpp"
#include "core/optimizer/learning_rate_schedule.hpp"
#include "core/planned_fault.hpp"
#include "io/checkpoint/checkpoint_stage.hpp"
#include "io/store/digest.hpp"
#include "kernels/blas/exec.hpp"
#include "parallel/plan/update_table.hpp"
#include "parallel/stage/make_stages.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

bool inside(const std::string& checkpoint, const std::string& run_dir) {
  std::error_code ignored;
  return fs::equivalent(fs::canonical(checkpoint, ignored).parent_path().parent_path(), run_dir, ignored);
}

void refuse_changes(const std::string& stored_deck, const Deck& now, const std::string& checkpoint) {
  Deck stored;
  stored.add_text(stored_deck, checkpoint + "/manifest.json", ".");
  Options::read(stored);
  std::string lines;
  for (const DeckDifference& d : forbidden_changes(stored, now))
    if (stored.has(d.key))  // an imported checkpoint says nothing of most keys
      lines += fmt::format("\n  {}: {} in the checkpoint, {} now", d.key, d.stored, d.now);
  if (!lines.empty())
    fail(ExitCode::bad_data, "{}: a resume may not change these keys (fork with -d NEW_DIR instead):{}", checkpoint,
         lines);
}

// The first rank logs to the console and to log.txt; others show warnings and name their rank. before: warnings that
// were given before there was a log.
void log_to(const std::string& run_dir, const Runtime& runtime, const std::vector<std::string>& before) {
  auto console = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  std::shared_ptr<spdlog::logger> logger;
  if (runtime.is_first()) {
    auto file = std::make_shared<LogFile>(run_dir);
    logger = std::make_shared<spdlog::logger>("sestina", spdlog::sinks_init_list{console, file});
    logger->set_pattern("%v");
    file->set_pattern("%Y-%m-%d %H:%M:%S %L %v");
    logger->flush_on(spdlog::level::info);
    spdlog::logger to_file("sestina", file);
    for (const std::string& line : before) to_file.warn("{}", line);
  } else {
    logger = std::make_shared<spdlog::logger>("sestina", console);
    logger->set_pattern(fmt::format("rank {}: %v", runtime.rank()));
    logger->set_level(spdlog::level::warn);
    logger->flush_on(spdlog::level::warn);
  }
  spdlog::set_default_logger(logger);
}

// Makes the setup that of a resume from the checkpoint of a rollback.
void go_back(TrainSetup& setup, const Rollback& rollback) {
  setup.rollback = rollback;
  setup.checkpoint = rollback.checkpoint;
  setup.start_step = rollback.step;
  setup.weights_only = setup.imported = setup.fork = false;
  setup.poll = {};  // the run goes on: signals are asked for at its next step
}

// Runs everything after the setup: data, Kokkos, the run itself.
ExitCode train(const TrainSetup& setup, const std::vector<std::string>& kokkos, const std::string& command_line,
               Runtime& runtime, Stop& stop, StartUp& start, Metrics& metrics) {
  const Options& options = setup.options;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<SampleSet> training, validation;
  start.phase("opening the data", [&] {
    tokenizer = open_tokenizer(options.data);
    training = std::make_unique<SampleSet>(open_samples(options, Split::train, tokenizer.get(), start.poll()));
    if (options.metrics.eval_every > 0 && has_validation(options.data))
      validation = std::make_unique<SampleSet>(training->validation(tokenizer.get(), start.poll()));
  });
  const auto session = start_kokkos(runtime, options.run.threads, kokkos, options.optimizer.refresh_workers(),
                                    [&](const char* name, const auto& f) { start.phase(name, f); });
  runtime.begin_phase("measuring the machine");
  const std::vector<std::string> slow = check_speed(options.run, runtime);
  runtime.begin_phase("building the model");
  const std::unique_ptr<StageMaker> stages = make_stages(options.run.space, options.train.precision);
  const RunStart facts{setup.start_step,
                       setup.deck,
                       command_line,
                       stages->space(),
                       threads_of(Host()),
                       training->description(),
                       precision_line(options.train.precision, stages->memory() == MemorySpace::host)};
  const RunLine line = run_line(facts, runtime);
  for (const auto& text : start_lines(options, facts, setup.planned, available_memory_bytes()))
    spdlog::info("{}", text);  // other ranks log warnings alone
  for (const auto& text : table_lines(update_table(setup.planned.plan))) spdlog::info("           {}", text);
  for (const auto& text : transfer_lines(options)) spdlog::info("{}", text);
  metrics.run(line);
  for (const auto& text : slow) {
    if (runtime.is_first()) spdlog::warn("{}", text);
    metrics.event(setup.start_step, "slow_machine", text);
  }
  for (TrainSetup now = setup;;) {
    Trainer trainer(*stages, now, runtime, *training, validation.get(), stop, metrics);
    runtime.set_timeout(options.run.abort_timeout);  // from here on no rank has long to do by itself
    const ExitCode code = trainer.run();
    if (!trainer.rollback()) return code;
    runtime.set_timeout(options.run.start_timeout);
    go_back(now, *trainer.rollback());
  }
}

// Checkpoints that were whole on staging disks when a run in this directory was killed reach it before one is chosen:
// each rank copies the shards that it can see. One that cannot be completed is given up, with a warning.
void finish_staged_saves(Runtime& runtime, StartUp& start, TrainSetup& setup) {
  std::unique_ptr<RunDir> lock;
  std::string list;
  start.phase("looking for staged checkpoints", [&] {
    const std::string run_dir = fs::absolute(setup.run_dir).string();
    if (!runtime.is_first() || staged_leftovers(run_dir).empty()) return;
    lock = std::make_unique<RunDir>(run_dir);
    list = fmt::format("{}", fmt::join(staged_leftovers(run_dir), "\n"));
  });
  runtime.world().broadcast(list, 0);
  std::istringstream lines(list);
  for (std::string notes; std::getline(lines, notes);) {
    start.phase("copying staged checkpoints", [&] { drain_leftover(notes); });
    start.phase("completing staged checkpoints", [&] {
      if (!runtime.is_first()) return;
      std::string problem;
      const auto saved = finish_leftover(setup.run_dir, notes, problem);
      if (!problem.empty()) setup.warnings.push_back(problem);
      if (saved)
        setup.warnings.push_back(
            fmt::format("{}: was on a staging disk when its run was killed; completed now", saved->path));
    });
  }
  for (const std::string& line : setup.warnings) spdlog::warn("{}", line);
}

// Finds and verifies the newest checkpoint on the first rank, and reads its deck.
void find_start(const TrainArguments& arguments, Runtime& runtime, StartUp& start, TrainSetup& setup,
                std::string& stored) {
  std::int64_t facts[2] = {0, 0};  // its updates; 1 if it was imported
  start.phase("finding the checkpoint", [&] {
    if (!runtime.is_first()) return;
    setup.checkpoint = find_start_checkpoint(arguments, setup.run_dir, setup.warnings, start.poll());
    if (setup.checkpoint.empty()) return;
    if (runtime.size() > 1) setup.checkpoint = fs::absolute(setup.checkpoint).string();
    const CheckpointReader reader(setup.checkpoint, Verify::opened);
    stored = reader.run().deck;
    facts[0] = reader.run().step;
    facts[1] = reader.run().step == 0 && !has_optimizer_state(reader) ? 1 : 0;
  });
  runtime.world().broadcast(facts, sizeof facts, 0);
  setup.imported = facts[1] == 1;
  setup.weights_only = arguments.weights_only || setup.imported;
  setup.start_step = setup.weights_only ? 0 : facts[0];
  runtime.world().broadcast(setup.checkpoint, 0);
  runtime.world().broadcast(stored, 0);
  if (setup.checkpoint.empty() || !names_checkpoint(arguments)) return;
  start.phase("verifying the checkpoint", [&] {  // the ranks share the work for one that was named
    const std::string problem = verify_part(setup.checkpoint, runtime.rank(), runtime.size(), false, start.poll());
    if (!problem.empty()) fail(ExitCode::bad_data, "{}", problem);
  });
}

// Reads deck and options of this rank; returns what of them all ranks must have in common.
std::vector<Statement> read_deck(const TrainArguments& arguments, const Runtime& runtime, const std::string& stored,
                                 TrainSetup& setup) {
  DeckArguments layers = arguments.deck;
  layers.model_is_stored = holds_hf_model(setup.checkpoint);
  take_all_ranks(layers, stored, setup.checkpoint, runtime.size());
  Deck deck = layered_deck(layers, stored, setup.checkpoint);
  setup.options = read_trainable(deck);
  require_ranks(deck, setup.options.parallel, runtime.size());
  deck.finish();
  if (!setup.options.model.from_hf.empty()) require_byte_vocabulary(setup.options);
  take_companions(setup.options, layers, setup.checkpoint);
  if (arguments.walltime > 0) setup.options.run.walltime = arguments.walltime;
  setup.fork = !setup.checkpoint.empty() && !inside(setup.checkpoint, setup.run_dir);
  if (!setup.checkpoint.empty() && !setup.fork) refuse_changes(stored, deck, setup.checkpoint);
  record_model(deck, setup.options.model);
  setup.deck = deck.dump();
  return deck_statements(deck, given_deck(arguments.deck));
}

// Returns what the command line says in addition to the deck. A checkpoint that is named is compared by what it holds.
std::vector<Statement> command_statements(const TrainArguments& arguments) {
  std::vector<Statement> statements = program_statements();
  const std::string& resume = arguments.resume;
  std::string found = resume.empty() ? "not given" : resume;
  if (names_checkpoint(arguments)) {
    const std::string checkpoint = glance_at_checkpoint(arguments);
    found = checkpoint.empty() ? "no checkpoint" : digest_files({checkpoint + "/manifest.json"}).xxh3_128;
  }
  statements.push_back({"-r", found, names_checkpoint(arguments) ? fmt::format("{} ({})", resume, found) : "", true});
  statements.push_back({"--weights-only", arguments.weights_only ? "given" : "not given", "", true});
  statements.push_back({"-t", fmt::format("{} s", arguments.walltime), "", true});
  return statements;
}

// Ends the run, before anything depends on them, unless deck, data and checkpoint are the same on all ranks.
void resolve_deck(const TrainArguments& arguments, Runtime& runtime, StartUp& start, const std::string& stored,
                  TrainSetup& setup) {
  std::vector<Statement> deck, data;
  start.phase("reading the deck", [&] { deck = read_deck(arguments, runtime, stored, setup); });
  require_agreement(runtime.world(), deck, ExitCode::bad_deck);
  const Options& options = setup.options;
  runtime.set_start_timeout(options.run.start_timeout);
  start.phase("comparing the data", [&] {
    session_threads(options.run.threads, arguments.kokkos, runtime.node_ranks(), options.optimizer.refresh_workers());
    setup.planned = plan_that_fits(options, runtime.rank(), runtime.size(), runtime.node_ranks());
    if (runtime.is_first()) setup.companions = companions_of(options, setup.checkpoint);
    if (!options.data.tokenizer.empty()) setup.tokenizer_digest = digest_file(options.data.tokenizer).xxh3_128;
    if (runtime.size() == 1) return;
    data = data_statements(options, start.poll());
    if (setup.checkpoint.empty()) return;
    const FileDigest manifest = digest_files({setup.checkpoint + "/manifest.json"});
    data.push_back({"checkpoint", manifest.xxh3_128, fmt::format("{} ({})", setup.checkpoint, manifest.xxh3_128)});
  });
  require_agreement(runtime.world(), data, ExitCode::bad_data);
}

// The first line of the lock names its holder: a rank that reads another line sees another folder. A network file
// system may take a while to show it.
void require_same_run_dir(const TrainSetup& setup, Runtime& runtime, StartUp& start) {
  const auto holder = [&] {
    std::ifstream file(setup.run_dir + "/lock");
    std::string line;
    std::getline(file, line);
    return line;
  };
  std::string first = holder(), where = setup.run_dir;
  runtime.world().broadcast(first, 0);
  runtime.world().broadcast(where, 0);
  start.phase("comparing the run directory", [&] {
    constexpr int rounds = 100;
    for (int i = 0; holder() != first; ++i) {
      if (i == rounds)
        fail(ExitCode::bad_deck, "run.dir: {} is not the folder that rank 0 sees as {}; all ranks need the same one",
             setup.run_dir, where);
      start.poll()();
      std::this_thread::sleep_for(std::chrono::milliseconds(i < rounds / 2 ? 5 : 100));
    }
  });
}

// The run directory belongs to the first rank, which locks it.
std::unique_ptr<RunDir> open_run_dir(const TrainArguments& arguments, const TrainSetup& setup, Runtime& runtime,
                                     StartUp& start) {
  std::unique_ptr<RunDir> run_dir;
  start.phase("opening the run directory", [&] {
    if (!runtime.is_first()) return;
    run_dir = std::make_unique<RunDir>(setup.run_dir);
    if ((setup.checkpoint.empty() || setup.fork) && !list_checkpoints(setup.run_dir).empty())
      fail(ExitCode::cannot_create,
           "{} already contains checkpoints: resume with -r auto, or choose another directory with -d", setup.run_dir);
    if (arguments.resume == "auto") {
      const std::string problem = restart_problem(end_of_metrics(setup.run_dir), setup.start_step,
                                                  digest128(setup.deck.data(), setup.deck.size()));
      if (!problem.empty()) fail(ExitCode::diverged, "{}", problem);
    }
    run_dir->write_deck(setup.deck);
  });
  if (runtime.size() > 1) require_same_run_dir(setup, runtime, start);
  return run_dir;
}

void warn_of_jump(const std::string& stored, const TrainSetup& setup) {
  Deck deck;
  deck.add_text(stored, setup.checkpoint + "/manifest.json", ".");
  const std::string jump = learning_rate_jump(Options::read(deck), setup.options, setup.start_step);
  if (!jump.empty()) spdlog::warn("{}", jump);
}

int train_on_ranks(const TrainArguments& arguments, Runtime& runtime, Stop& stop) {
  TrainSetup setup;
  std::string stored;
  StartUp start(runtime, stop, [&] { return !glance_at_checkpoint(arguments).empty(); });
  runtime.begin_phase("comparing the programs");
  require_agreement(runtime.world(), command_statements(arguments), ExitCode::bad_deck);
  start.phase("reading the deck", [&] {
    setup.run_dir = find_run_dir(arguments);
    const char* fault = std::getenv("SESTINA_FAULT");
    setup.fault = parse_fault(fault == nullptr ? "" : fault);
  });
  finish_staged_saves(runtime, start, setup);
  find_start(arguments, runtime, start, setup, stored);
  setup.poll = start.last_poll();
  resolve_deck(arguments, runtime, start, stored, setup);
  const Options& options = setup.options;
  const std::unique_ptr<RunDir> run_dir = open_run_dir(arguments, setup, runtime, start);
  setup.held = run_dir.get();
  log_to(setup.run_dir, runtime, setup.warnings);
  stop.set_up(options.run, setup.run_dir, runtime.is_first());
  setup.progress = shows_progress(arguments.progress, STDOUT_FILENO);
  std::unique_ptr<Metrics> metrics;
  start.phase("opening the metrics", [&] {
    metrics = runtime.is_first() ? std::make_unique<Metrics>(setup.run_dir, options.metrics.tensorboard)
                                 : std::make_unique<Metrics>();
  });
  if (const std::string defect = byte_text_defect(options); runtime.is_first() && !defect.empty())
    spdlog::warn("{}", defect);
  if (const std::string warning = short_run_warning(options.run, options.schedule);
      runtime.is_first() && !warning.empty())
    spdlog::warn("{}", warning);
  if (const std::string warning = element_rule_warning(options.optimizer, options.schedule);
      runtime.is_first() && !warning.empty())
    spdlog::warn("{}", warning);
  spdlog::info("{}: {} parameters, {} steps of {} x {} tokens, {}", setup.run_dir, parameter_count(options.model),
               options.run.steps, options.train.global_batch, options.data.sequence_length,
               options.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32");
  if (holds_hf_model(setup.checkpoint) && given_deck(arguments.deck).has("model.from_hf"))
    spdlog::info("model.from_hf is not read: {} holds the model and the files next to it", setup.checkpoint);
  if (setup.imported && !arguments.weights_only)
    spdlog::info("{} was imported and holds only weights: loaded as with --weights-only", setup.checkpoint);
  if (!stored.empty() && !setup.weights_only) warn_of_jump(stored, setup);
  return static_cast<int>(train(setup, arguments.kokkos, arguments.command_line, runtime, stop, start, *metrics));
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
      return train_on_ranks(arguments, runtime, stop);
    } catch (const Error& error) {
      if (error.code() != ExitCode::stopped_saved && error.code() != ExitCode::stopped_unsaved) throw;
      if (runtime.is_first()) spdlog::info("{}", error.what());
      return static_cast<int>(error.code());
    }
  });
}

}  // namespace sestina
