#include "app/verbs/train_start.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "app/start/kokkos_session.hpp"
#include "app/start/log_file.hpp"
#include "app/start/memory_check.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/rank_agreement.hpp"
#include "app/train/run_start.hpp"
#include "app/train/step_report.hpp"
#include "app/watch/restarts.hpp"
#include "core/deck/model_config.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/learning_rate_schedule.hpp"
#include "core/planned_fault.hpp"
#include "io/checkpoint/checkpoint_stage.hpp"
#include "io/store/digest.hpp"

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

// Reads deck and options of this rank; returns what of them all ranks must have in common.
std::vector<Statement> read_deck(TrainStart& at) {
  const TrainArguments& arguments = at.arguments;
  const std::string& stored = at.stored;
  TrainSetup& setup = at.setup;
  DeckArguments layers = arguments.deck;
  layers.model_is_stored = holds_hf_model(setup.checkpoint);
  take_all_ranks(layers, stored, setup.checkpoint, at.runtime.size());
  Deck deck = layered_deck(layers, stored, setup.checkpoint);
  setup.options = read_trainable(deck);
  require_ranks(deck, setup.options.parallel, at.runtime.size());
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

// The first line of the lock names its holder: a rank that reads another line sees another folder. A network file
// system may take a while to show it.
void require_same_run_dir(TrainStart& at) {
  const TrainSetup& setup = at.setup;
  const auto holder = [&] {
    std::ifstream file(setup.run_dir + "/lock");
    std::string line;
    std::getline(file, line);
    return line;
  };
  std::string first = holder(), where = setup.run_dir;
  at.runtime.world().broadcast(first, 0);
  at.runtime.world().broadcast(where, 0);
  at.phases.phase("comparing the run directory", [&] {
    constexpr int rounds = 100;
    for (int i = 0; holder() != first; ++i) {
      if (i == rounds)
        fail(ExitCode::bad_deck, "run.dir: {} is not the folder that rank 0 sees as {}; all ranks need the same one",
             setup.run_dir, where);
      at.phases.poll()();
      std::this_thread::sleep_for(std::chrono::milliseconds(i < rounds / 2 ? 5 : 100));
    }
  });
}

void warn_of_jump(const TrainStart& at) {
  const TrainSetup& setup = at.setup;
  Deck deck;
  deck.add_text(at.stored, setup.checkpoint + "/manifest.json", ".");
  const std::string jump = learning_rate_jump(Options::read(deck), setup.options, setup.start_step);
  if (!jump.empty()) spdlog::warn("{}", jump);
}

}  // namespace

TrainStart::TrainStart(const TrainArguments& given, Runtime& ranks, Stop& stops)
    : arguments(given),
      runtime(ranks),
      stop(stops),
      phases(ranks, stops, [this] { return !glance_at_checkpoint(arguments).empty(); }) {}

void compare_programs(TrainStart& at) {
  at.runtime.begin_phase("comparing the programs");
  require_agreement(at.runtime.world(), command_statements(at.arguments), ExitCode::bad_deck);
}

void read_run_dir(TrainStart& at) {
  at.phases.phase("reading the deck", [&] {
    at.setup.run_dir = find_run_dir(at.arguments);
    const char* fault = std::getenv("SESTINA_FAULT");
    at.setup.fault = parse_fault(fault == nullptr ? "" : fault);
  });
}

// Each rank copies the shards that it can see. A checkpoint that cannot be completed is given up, with a warning.
void finish_staged_saves(TrainStart& at) {
  Runtime& runtime = at.runtime;
  TrainSetup& setup = at.setup;
  std::unique_ptr<RunDir> lock;
  std::string list;
  at.phases.phase("looking for staged checkpoints", [&] {
    const std::string run_dir = fs::absolute(setup.run_dir).string();
    if (!runtime.is_first() || staged_leftovers(run_dir).empty()) return;
    lock = std::make_unique<RunDir>(run_dir);
    list = fmt::format("{}", fmt::join(staged_leftovers(run_dir), "\n"));
  });
  runtime.world().broadcast(list, 0);
  std::istringstream lines(list);
  for (std::string notes; std::getline(lines, notes);) {
    at.phases.phase("copying staged checkpoints", [&] { drain_leftover(notes); });
    at.phases.phase("completing staged checkpoints", [&] {
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

void find_checkpoint(TrainStart& at) {
  const TrainArguments& arguments = at.arguments;
  Runtime& runtime = at.runtime;
  TrainSetup& setup = at.setup;
  std::int64_t facts[2] = {0, 0};  // its updates; 1 if it was imported
  at.phases.phase("finding the checkpoint", [&] {
    if (!runtime.is_first()) return;
    setup.checkpoint = find_start_checkpoint(arguments, setup.run_dir, setup.warnings, at.phases.poll());
    if (setup.checkpoint.empty()) return;
    if (runtime.size() > 1) setup.checkpoint = fs::absolute(setup.checkpoint).string();
    const CheckpointReader reader(setup.checkpoint, Verify::opened);
    at.stored = reader.run().deck;
    facts[0] = reader.run().step;
    facts[1] = reader.run().step == 0 && !has_optimizer_state(reader) ? 1 : 0;
  });
  runtime.world().broadcast(facts, sizeof facts, 0);
  setup.imported = facts[1] == 1;
  setup.weights_only = arguments.weights_only || setup.imported;
  setup.start_step = setup.weights_only ? 0 : facts[0];
  runtime.world().broadcast(setup.checkpoint, 0);
  runtime.world().broadcast(at.stored, 0);
  setup.poll = at.phases.last_poll();
  if (setup.checkpoint.empty() || !names_checkpoint(arguments)) return;
  at.phases.phase("verifying the checkpoint", [&] {  // the ranks share the work for one that was named
    const std::string problem = verify_part(setup.checkpoint, runtime.rank(), runtime.size(), false, at.phases.poll());
    if (!problem.empty()) fail(ExitCode::bad_data, "{}", problem);
  });
}

void resolve_deck(TrainStart& at) {
  Runtime& runtime = at.runtime;
  TrainSetup& setup = at.setup;
  std::vector<Statement> deck, data;
  at.phases.phase("reading the deck", [&] { deck = read_deck(at); });
  require_agreement(runtime.world(), deck, ExitCode::bad_deck);
  const Options& options = setup.options;
  runtime.set_start_timeout(options.run.start_timeout);
  at.phases.phase("comparing the data", [&] {
    session_threads(options.run.threads, at.arguments.kokkos, runtime.node_ranks(),
                    options.optimizer.refresh_workers());
    setup.planned = plan_that_fits(options, runtime.rank(), runtime.size(), runtime.node_ranks());
    if (runtime.is_first()) setup.companions = companions_of(options, setup.checkpoint);
    if (!options.data.tokenizer.empty()) setup.tokenizer_digest = digest_file(options.data.tokenizer).xxh3_128;
    if (runtime.size() == 1) return;
    data = data_statements(options, at.phases.poll());
    if (setup.checkpoint.empty()) return;
    const FileDigest manifest = digest_files({setup.checkpoint + "/manifest.json"});
    data.push_back({"checkpoint", manifest.xxh3_128, fmt::format("{} ({})", setup.checkpoint, manifest.xxh3_128)});
  });
  require_agreement(runtime.world(), data, ExitCode::bad_data);
}

std::unique_ptr<RunDir> open_run_dir(TrainStart& at) {
  TrainSetup& setup = at.setup;
  std::unique_ptr<RunDir> run_dir;
  at.phases.phase("opening the run directory", [&] {
    if (!at.runtime.is_first()) return;
    run_dir = std::make_unique<RunDir>(setup.run_dir);
    if ((setup.checkpoint.empty() || setup.fork) && !list_checkpoints(setup.run_dir).empty())
      fail(ExitCode::cannot_create,
           "{} already contains checkpoints: resume with -r auto, or choose another directory with -d", setup.run_dir);
    if (at.arguments.resume == "auto") {
      const std::string problem = restart_problem(end_of_metrics(setup.run_dir), setup.start_step,
                                                  digest128(setup.deck.data(), setup.deck.size()));
      if (!problem.empty()) fail(ExitCode::diverged, "{}", problem);
    }
    run_dir->write_deck(setup.deck);
  });
  if (at.runtime.size() > 1) require_same_run_dir(at);
  setup.held = run_dir.get();
  return run_dir;
}

void open_log(TrainStart& at) {
  log_to(at.setup.run_dir, at.runtime, at.setup.warnings);
  at.stop.set_up(at.setup.options.run, at.setup.run_dir, at.runtime.is_first());
  at.setup.progress = shows_progress(at.arguments.progress, STDOUT_FILENO);
}

std::unique_ptr<Metrics> open_metrics(TrainStart& at) {
  std::unique_ptr<Metrics> metrics;
  at.phases.phase("opening the metrics", [&] {
    metrics = at.runtime.is_first() ? std::make_unique<Metrics>(at.setup.run_dir, at.setup.options.metrics.tensorboard)
                                    : std::make_unique<Metrics>();
  });
  return metrics;
}

void log_deck(const TrainStart& at) {
  const TrainSetup& setup = at.setup;
  const Options& options = setup.options;
  for (const std::string& warning : {byte_text_defect(options), short_run_warning(options.run, options.schedule),
                                     element_rule_warning(options.optimizer, options.schedule)})
    if (at.runtime.is_first() && !warning.empty()) spdlog::warn("{}", warning);
  spdlog::info("{}: {} parameters, {} steps of {} x {} tokens, {}", setup.run_dir, parameter_count(options.model),
               options.run.steps, options.train.global_batch, options.data.sequence_length,
               options.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32");
  if (holds_hf_model(setup.checkpoint) && given_deck(at.arguments.deck).has("model.from_hf"))
    spdlog::info("model.from_hf is not read: {} holds the model and the files next to it", setup.checkpoint);
  if (setup.imported && !at.arguments.weights_only)
    spdlog::info("{} was imported and holds only weights: loaded as with --weights-only", setup.checkpoint);
  if (!at.stored.empty() && !setup.weights_only) warn_of_jump(at);
}

TrainData open_data(TrainStart& at) {
  const Options& options = at.setup.options;
  TrainData data;
  at.phases.phase("opening the data", [&] {
    data.tokenizer = open_tokenizer(options.data);
    data.training =
        std::make_unique<SampleSet>(open_samples(options, Split::train, data.tokenizer.get(), at.phases.poll()));
    if (options.metrics.eval_every > 0 && has_validation(options.data))
      data.validation = std::make_unique<SampleSet>(data.training->validation(data.tokenizer.get(), at.phases.poll()));
  });
  return data;
}

}  // namespace sestina
