// `sestina train`: settles deck, checkpoint, data and run directory, then trains.
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "app/deck_layers.hpp"
#include "app/dispatch.hpp"
#include "app/kokkos_session.hpp"
#include "app/log_file.hpp"
#include "app/memory_check.hpp"
#include "app/rank_run.hpp"
#include "app/run_data.hpp"
#include "app/run_dir.hpp"
#include "app/trainer.hpp"
#include "app/verbs.hpp"
#include "io/digest.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

// Where the run lives: -d, else run.dir, else runs/<name>; read without the checkpoint's deck, which it helps to find.
std::string find_run_dir(const TrainArguments& arguments) {
  if (!arguments.run_dir.empty()) return arguments.run_dir;
  if (arguments.deck.deck.empty() && arguments.deck.overrides.empty())
    fail(ExitCode::usage, "train: neither a deck (-i) nor a run directory (-d) was given");
  Deck deck = layered_deck(arguments.deck);
  const RunOptions run = RunOptions::read(deck);
  return run.dir.empty() ? "runs/" + run.name : run.dir;
}

// warnings: about checkpoints that are passed over.
std::string find_checkpoint(const TrainArguments& arguments, const std::string& run_dir,
                            std::vector<std::string>& warnings) {
  if (arguments.resume.empty()) return "";
  if (arguments.resume != "auto" && arguments.resume != "latest") {
    if (!fs::exists(fs::symlink_status(arguments.resume)))
      fail(ExitCode::input_missing, "-r {}: no such checkpoint folder", arguments.resume);
    if (!fs::is_directory(fs::path(arguments.resume) / "checkpoints")) return arguments.resume;
  }
  const bool other_run = arguments.resume != "auto" && arguments.resume != "latest";
  const std::string where = other_run ? arguments.resume : run_dir;  // -r RUN_DIR: its newest
  const auto warn = [&warnings](const std::string& line) {
    spdlog::warn("{}", line);
    warnings.push_back(line);
  };
  const std::string found = newest_complete(where, false, warn, true);
  if (!found.empty()) return found;
  if (!list_checkpoints(where).empty())
    fail(ExitCode::bad_data, "-r {}: {} holds checkpoints, but none is complete; see `sestina checkpoint list {}`",
         arguments.resume, where, where);
  if (arguments.resume == "auto") return "";
  fail(ExitCode::input_missing, "-r {}: {} holds no checkpoint", arguments.resume, where);
}

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

// The first rank logs to the console and to log.txt; others show warnings, and say who they are.
// before: warnings that were given before there was a log.
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

// parallel.dp where neither deck nor command line says it (a resumed deck does not count): all ranks that are left.
void take_all_ranks(DeckArguments& arguments, const std::string& stored, const std::string& stored_where, int ranks) {
  if (!arguments.deck.empty() || !arguments.overrides.empty())
    if (layered_deck(arguments).has("parallel.dp")) return;
  Deck deck = layered_deck(arguments, stored, stored_where);
  const std::int64_t others = deck.integer("parallel.tp", 1) * deck.integer("parallel.pp", 1);
  if (others > 0 && ranks % others == 0) arguments.overrides.push_back(fmt::format("parallel.dp={}", ranks / others));
}

void require_ranks(Deck& deck, const ParallelOptions& parallel, int ranks) {
  if (parallel.ranks() == ranks) return;
  const int others = parallel.tp * parallel.pp;
  if (ranks % others != 0) {
    deck.error("parallel.tp", fmt::format("tp x pp = {} does not divide the {} ranks that were started", others, ranks),
               fmt::format("mpirun -n with a multiple of {}", others));
    return;
  }
  deck.error("parallel.dp",
             fmt::format("the deck is for {} x {} x {} = {} ranks (dp, tp, pp), {} started", parallel.dp, parallel.tp,
                         parallel.pp, parallel.ranks(), ranks == 1 ? "one was" : fmt::format("{} were", ranks)),
             fmt::format("start it with mpirun -n {}, or leave parallel.dp away", parallel.ranks()));
}

// Everything behind the settled setup: data, Kokkos, the run itself.
ExitCode train(const TrainSetup& setup, std::vector<std::string> kokkos, Runtime& runtime, Stop& stop,
               Metrics& metrics) {
  const Options& options = setup.options;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<SampleSet> training, validation;
  runtime.together([&] {
    tokenizer = open_tokenizer(options.data);
    training = std::make_unique<SampleSet>(open_samples(options, Split::train, tokenizer.get()));
    if (options.metrics.eval_every > 0 && has_validation(options.data))
      validation = std::make_unique<SampleSet>(training->validation(tokenizer.get()));
  });
  spdlog::info("{}", training->description());
  double stopped = stop.poll(0) == Stop::Wish::stop ? 1 : 0;
  runtime.world().all_reduce(&stopped, 1, Reduction::max);
  if (stopped > 0) {
    spdlog::info("stopped by {} before the first update", stop.reason().empty() ? "another rank" : stop.reason());
    return setup.checkpoint.empty() ? ExitCode::stopped_unsaved : ExitCode::stopped_saved;
  }
  if (!runtime.is_first()) kokkos.push_back("--kokkos-disable-warnings");
  const KokkosSession session(options.run.threads, kokkos, runtime.node_ranks());
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    using Exec = std::decay_t<decltype(exec)>;
    Trainer<Exec, typename decltype(tag)::type> trainer(exec, setup, runtime, *training, validation.get(), stop,
                                                        metrics);
    runtime.set_timeout(options.run.abort_timeout);  // from here on no rank has long to do by itself
    return trainer.run();
  });
}

// The newest checkpoint and its deck, found and verified by the first rank.
void find_start(const TrainArguments& arguments, Runtime& runtime, TrainSetup& setup, std::string& stored) {
  runtime.together([&] {
    if (!runtime.is_first()) return;
    setup.checkpoint = find_checkpoint(arguments, setup.run_dir, setup.warnings);
    if (!setup.checkpoint.empty()) stored = CheckpointReader(setup.checkpoint, Verify::opened).run().deck;
  });
  runtime.world().broadcast(setup.checkpoint, 0);
  runtime.world().broadcast(stored, 0);
  if (setup.checkpoint.empty() || arguments.resume == "auto" || arguments.resume == "latest") return;
  runtime.together([&] {  // one that was named, not found: the ranks share the work of verifying it
    const std::string problem = verify_part(setup.checkpoint, runtime.rank(), runtime.size(), false);
    if (!problem.empty()) fail(ExitCode::bad_data, "{}", problem);
  });
}

// Deck and options, the same on every rank, or the same error.
void read_deck(const TrainArguments& arguments, Runtime& runtime, const std::string& stored, TrainSetup& setup) {
  DeckArguments layers = arguments.deck;
  take_all_ranks(layers, stored, setup.checkpoint, runtime.size());
  Deck deck = layered_deck(layers, stored, setup.checkpoint);
  setup.options = Options::read(deck);
  require_training_keys(deck);
  require_trainable(deck, setup.options);
  require_ranks(deck, setup.options.parallel, runtime.size());
  deck.finish();
  if (arguments.walltime > 0) setup.options.run.walltime = arguments.walltime;
  setup.deck = deck.dump();
  setup.fork = !setup.checkpoint.empty() && !inside(setup.checkpoint, setup.run_dir);
  if (!setup.checkpoint.empty() && !setup.fork) refuse_changes(stored, deck, setup.checkpoint);
}

// The run directory belongs to the first rank, which locks it.
std::unique_ptr<RunDir> open_run_dir(const TrainSetup& setup, Runtime& runtime) {
  std::unique_ptr<RunDir> run_dir;
  runtime.together([&] {
    if (!runtime.is_first()) return;
    run_dir = std::make_unique<RunDir>(setup.run_dir);
    if ((setup.checkpoint.empty() || setup.fork) && !list_checkpoints(setup.run_dir).empty())
      fail(ExitCode::cannot_create,
           "{} already holds checkpoints: go on with -r auto, or choose another directory with -d", setup.run_dir);
    run_dir->write_deck(setup.deck);
  });
  return run_dir;
}

int train_on_ranks(const TrainArguments& arguments, Runtime& runtime) {
  TrainSetup setup;
  std::string stored;
  runtime.together([&] { setup.run_dir = find_run_dir(arguments); });
  find_start(arguments, runtime, setup, stored);
  setup.weights_only = arguments.weights_only;
  runtime.together([&] { read_deck(arguments, runtime, stored, setup); });
  const Options& options = setup.options;
  runtime.together([&] {
    require_memory(options, runtime.rank(), runtime.node_ranks());
    if (!options.data.tokenizer.empty()) setup.tokenizer_digest = digest_file(options.data.tokenizer).xxh3_128;
  });
  const std::unique_ptr<RunDir> run_dir = open_run_dir(setup, runtime);
  setup.held = run_dir.get();
  log_to(setup.run_dir, runtime, setup.warnings);
  Stop stop(options.run, setup.run_dir, runtime.is_first());
  std::unique_ptr<Metrics> metrics;
  runtime.together([&] {
    metrics = runtime.is_first() ? std::make_unique<Metrics>(setup.run_dir, options.metrics.tensorboard)
                                 : std::make_unique<Metrics>();
  });
  spdlog::info("{}: {} parameters, {} updates of {} x {} tokens, {}", setup.run_dir, parameter_count(options.model),
               options.run.steps, options.train.global_batch, options.data.sequence_length,
               options.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32");
  if (runtime.size() > 1)
    spdlog::info("{} ranks: {} x {} (data x tensor parallel), micro-batches of {} sequences", runtime.size(),
                 options.parallel.dp, options.parallel.tp, options.train.micro_batch);
  return static_cast<int>(train(setup, arguments.kokkos, runtime, stop, *metrics));
}

// Parses, merges and validates everything; prints the resolved deck. Knows no ranks.
int print_deck(const TrainArguments& arguments) {
  TrainSetup setup;
  setup.run_dir = find_run_dir(arguments);
  setup.checkpoint = find_checkpoint(arguments, setup.run_dir, setup.warnings);
  std::string stored;
  if (!setup.checkpoint.empty()) stored = CheckpointReader(setup.checkpoint, false).run().deck;
  Deck deck = layered_deck(arguments.deck, stored, setup.checkpoint);
  Options options = Options::read(deck);
  require_training_keys(deck);
  require_trainable(deck, options);
  deck.finish();
  std::fputs(deck.dump().c_str(), stdout);
  return static_cast<int>(ExitCode::done);
}

}  // namespace

int run_train(const TrainArguments& arguments) {
  if (arguments.dry_run) return print_deck(arguments);
  // Until training starts: one rank may verify a large checkpoint, or read a large text, while the others wait.
  constexpr double start_timeout = 1200;
  Runtime runtime(start_timeout);
  return run_on_ranks(runtime, [&] { return train_on_ranks(arguments, runtime); });
}

}  // namespace sestina
