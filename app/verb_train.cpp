// `sestina train`: settles deck, checkpoint, data and run directory, then trains.
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "app/deck_layers.hpp"
#include "app/dispatch.hpp"
#include "app/kokkos_session.hpp"
#include "app/memory_check.hpp"
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

std::string find_checkpoint(const TrainArguments& arguments, const std::string& run_dir) {
  if (arguments.resume.empty()) return "";
  if (arguments.resume != "auto" && arguments.resume != "latest") {
    if (!fs::exists(fs::symlink_status(arguments.resume)))
      fail(ExitCode::input_missing, "-r {}: no such checkpoint folder", arguments.resume);
    if (!fs::is_directory(fs::path(arguments.resume) / "checkpoints")) return arguments.resume;
  }
  const bool other_run = arguments.resume != "auto" && arguments.resume != "latest";
  const std::string where = other_run ? arguments.resume : run_dir;  // -r RUN_DIR: its newest
  const std::string found = newest_complete(where, false, [](const std::string& line) { spdlog::warn("{}", line); });
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

// One process today: started as several tasks, each would take itself for the whole run.
void refuse_copies() {
  for (const char* name : {"SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || std::atoi(value) <= 1) continue;
    fail(ExitCode::unavailable,
         "started as {} tasks ({} is set), but this program runs as one process: start it once per run directory "
         "(srun --ntasks=1), or each task would train the same model",
         value, name);
  }
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

void log_to(const std::string& run_dir) {
  auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(run_dir + "/log.txt");
  auto console = std::make_shared<spdlog::sinks::stdout_sink_mt>();
  auto logger = std::make_shared<spdlog::logger>("sestina", spdlog::sinks_init_list{console, file});
  logger->set_pattern("%v");
  file->set_pattern("%Y-%m-%d %H:%M:%S %L %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

// Everything behind the settled setup: data, Kokkos, the run itself.
ExitCode train(const TrainSetup& setup, const std::vector<std::string>& kokkos, Stop& stop, Metrics& metrics) {
  const Options& options = setup.options;
  const std::unique_ptr<Tokenizer> tokenizer = open_tokenizer(options.data);
  const SampleSet training = open_samples(options, Split::train, tokenizer.get());
  spdlog::info("{}", training.description());
  std::unique_ptr<SampleSet> validation;
  if (options.metrics.eval_every > 0 && has_validation(options.data))
    validation = std::make_unique<SampleSet>(training.validation(tokenizer.get()));
  if (stop.poll(0) == Stop::Wish::stop) {
    spdlog::info("stopped by {} before the first update", stop.reason());
    return setup.checkpoint.empty() ? ExitCode::stopped_unsaved : ExitCode::stopped_saved;
  }
  const KokkosSession session(options.run.threads, kokkos);
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    using Exec = std::decay_t<decltype(exec)>;
    Trainer<Exec, typename decltype(tag)::type> trainer(exec, setup, training, validation.get(), stop, metrics);
    return trainer.run();
  });
}

}  // namespace

int run_train(const TrainArguments& arguments) {
  TrainSetup setup;
  if (!arguments.dry_run) refuse_copies();
  setup.run_dir = find_run_dir(arguments);
  setup.checkpoint = find_checkpoint(arguments, setup.run_dir);
  setup.weights_only = arguments.weights_only;
  std::string stored;
  if (!setup.checkpoint.empty()) stored = CheckpointReader(setup.checkpoint, false).run().deck;
  Deck deck = layered_deck(arguments.deck, stored, setup.checkpoint);
  setup.options = Options::read(deck);
  require_training_keys(deck);
  require_one_rank(deck, setup.options.parallel);
  deck.finish();
  if (arguments.walltime > 0) setup.options.run.walltime = arguments.walltime;
  setup.deck = deck.dump();
  if (arguments.dry_run) {
    std::fputs(setup.deck.c_str(), stdout);
    return static_cast<int>(ExitCode::done);
  }
  require_memory(setup.options);
  setup.fork = !setup.checkpoint.empty() && !inside(setup.checkpoint, setup.run_dir);
  if (!setup.checkpoint.empty() && !setup.fork) refuse_changes(stored, deck, setup.checkpoint);
  if (!setup.options.data.tokenizer.empty())
    setup.tokenizer_digest = digest_file(setup.options.data.tokenizer).xxh3_128;

  const RunDir run_dir(setup.run_dir);
  if ((setup.checkpoint.empty() || setup.fork) && !list_checkpoints(setup.run_dir).empty())
    fail(ExitCode::cannot_create,
         "{} already holds checkpoints: go on with -r auto, or choose another directory with -d", setup.run_dir);
  run_dir.write_deck(setup.deck);
  log_to(setup.run_dir);
  Stop stop(setup.options.run, setup.run_dir);
  Metrics metrics(setup.run_dir, setup.options.metrics.tensorboard);
  spdlog::info("{}: {} parameters, {} updates of {} x {} tokens, {}", setup.run_dir,
               parameter_count(setup.options.model), setup.options.run.steps, setup.options.train.global_batch,
               setup.options.data.sequence_length,
               setup.options.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32");
  return static_cast<int>(train(setup, arguments.kokkos, stop, metrics));
}

}  // namespace sestina
