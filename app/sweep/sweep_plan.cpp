#include "app/sweep/sweep_plan.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "app/start/run_deck.hpp"
#include "app/train/run_data.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"
#include "io/report/page.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

std::vector<std::string> overrides_of(const std::vector<SweepAxis>& grid, const SweepPoint& point) {
  std::vector<std::string> overrides;
  for (std::size_t a = 0; a < grid.size(); ++a) overrides.push_back(fmt::format("{}={}", grid[a].key, point.values[a]));
  return overrides;
}

std::string seed_override(std::int64_t seed) { return fmt::format("run.seed={}", seed); }

std::int64_t count_of(const Deck& deck, const char* key) {
  return static_cast<std::int64_t>(toml_number(deck.resolved(key)).value_or(0));
}

PointDeck read_point(const DeckArguments& layers) {
  Deck deck = layered_deck(layers);
  const Options options = read_trainable(deck);
  deck.finish();
  PointDeck point;
  point.resolved = deck.dump();
  point.steps = options.run.steps;
  point.warmup_steps = options.schedule.warmup_steps;
  point.schedule_steps = count_of(deck, "schedule.steps");
  point.decay_steps = count_of(deck, "schedule.decay_steps");
  point.ranks = options.parallel.ranks();
  point.evaluates = options.metrics.eval_every > 0 && has_validation(options.data);
  return point;
}

// Checks all points, so that all errors are told at once.
void read_points(Sweep& sweep) {
  std::vector<std::string> errors;
  for (const SweepPoint& point : sweep.points) {
    DeckArguments layers = sweep.deck;
    for (std::string& word : overrides_of(sweep.options.grid, point)) layers.overrides.push_back(std::move(word));
    if (!sweep.options.seeds.empty()) layers.overrides.push_back(seed_override(sweep.options.seeds[0]));
    try {
      sweep.decks.push_back(read_point(layers));
    } catch (const Error& error) {
      if (error.code() != ExitCode::bad_deck) throw;
      std::istringstream lines(error.what());
      for (std::string line; std::getline(lines, line);)
        if (!line.ends_with("is not valid:") && std::find(errors.begin(), errors.end(), line) == errors.end())
          errors.push_back(line);
    }
  }
  if (!errors.empty())
    fail(ExitCode::bad_deck, "sweep: points of the grid are not valid:\n{}", fmt::join(errors, "\n"));
}

void require_sweep(const Sweep& sweep) {
  std::set<std::string> names;
  for (const SweepPoint& point : sweep.points)
    if (!names.insert(point.name).second)
      fail(ExitCode::bad_deck, "sweep.grid: two points would have the folder {}; sweep them one after the other",
           point.name);
  if (sweep.options.metric == SweepOptions::Metric::validation && !sweep.validation)
    fail(ExitCode::bad_deck, "sweep.metric: \"validation\" needs metrics.eval_every and validation data at each point");
  if (!sweep.options.halving) return;
  const auto rungs =
      halving_rungs(sweep.points.size(), sweep.options.keep, sweep.options.rungs, sweep.decks.front().steps);
  if (rungs.front().steps < 1)
    fail(ExitCode::bad_deck,
         "sweep.rungs: {} rungs leave the first less than one of run.steps = {}; fewer, or more steps", rungs.size(),
         sweep.decks.front().steps);
}

// Shares out the cores: a deck without run.threads takes as few threads as let all runs go on at once.
void share_cores(Sweep& sweep, int deck_threads) {
  std::int64_t ranks = 1;
  for (const PointDeck& deck : sweep.decks) ranks = std::max(ranks, deck.ranks);
  const auto cores = static_cast<std::int64_t>(process_cores().size());
  const std::int64_t threads = sweep.options.threads > 0 ? sweep.options.threads : deck_threads;
  std::int64_t jobs = sweep.options.jobs;
  if (jobs == 0)
    jobs = std::min(cores / (ranks * std::max<std::int64_t>(threads, 1)), static_cast<std::int64_t>(sweep.count()));
  sweep.jobs = static_cast<int>(std::max<std::int64_t>(jobs, 1));
  sweep.threads = static_cast<int>(threads > 0 ? threads : std::max<std::int64_t>(cores / (sweep.jobs * ranks), 1));
}

}  // namespace

Sweep plan_sweep(const SweepArguments& arguments) {
  Sweep sweep;
  sweep.dir = arguments.dir;
  sweep.deck = arguments.deck;
  if (arguments.deck.empty()) layered_deck(arguments.deck);  // says that there is none
  Deck deck = given_deck(arguments.deck);
  const Options options = Options::read(deck);
  sweep.options = SweepOptions::read(deck, arguments.deck.files, arguments.deck.overrides);
  deck.finish();
  std::erase_if(sweep.deck.overrides,
                [](const std::string& word) { return word.starts_with("sweep.") || word.starts_with("sweep/"); });
  sweep.points = grid_points(sweep.options.grid);
  sweep.seeds = sweep.options.seeds;
  if (sweep.seeds.empty()) sweep.seeds = {static_cast<std::int64_t>(options.run.seed)};
  read_points(sweep);
  const bool evaluates =
      std::all_of(sweep.decks.begin(), sweep.decks.end(), [](const PointDeck& point) { return point.evaluates; });
  sweep.validation = evaluates && sweep.options.metric != SweepOptions::Metric::training;
  require_sweep(sweep);
  share_cores(sweep, options.run.threads);
  sweep.text = deck.dump() + "\n" + sweep_grid_text(sweep.options.grid);
  return sweep;
}

std::vector<SweepRun> runs_of(const Sweep& sweep, const std::vector<std::size_t>& points, std::int64_t steps) {
  std::vector<SweepRun> runs;
  for (const std::size_t p : points) {
    const PointDeck& deck = sweep.decks[p];
    std::vector<std::string> overrides = overrides_of(sweep.options.grid, sweep.points[p]);
    const std::int64_t length = steps == 0 ? deck.steps : steps;
    if (length != deck.steps) {
      overrides.push_back(fmt::format("run.steps={}", length));
      const std::pair<const char*, std::int64_t> parts[] = {{"schedule.steps", deck.schedule_steps},
                                                            {"schedule.warmup_steps", deck.warmup_steps},
                                                            {"schedule.decay_steps", deck.decay_steps}};
      for (const auto& [key, updates] : parts)
        if (updates > 0)
          overrides.push_back(fmt::format("{}={}", key, std::max<std::int64_t>(updates * length / deck.steps, 1)));
    }
    for (const std::int64_t seed : sweep.seeds) {
      SweepRun run{p, seed, length, sweep.dir, overrides};
      if (sweep.options.halving) run.dir += fmt::format("/steps={}", length);
      run.dir += fmt::format("/{}_seed={}", sweep.points[p].name, seed);
      run.overrides.push_back(seed_override(seed));
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

std::vector<std::string> command_of(const Sweep& sweep, const SweepRun& run) {
  std::vector<std::string> command;
  const std::int64_t ranks = sweep.decks[run.point].ranks;
  if (ranks > 1) command = {"mpirun", "-n", std::to_string(ranks)};
  command.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  command.insert(command.end(), {"train", "-r", "auto", "-d", run.dir, "--progress", "never"});
  for (const std::string& file : sweep.deck.files) command.insert(command.end(), {"-i", file});
  command.insert(command.end(), sweep.deck.overrides.begin(), sweep.deck.overrides.end());
  command.push_back(fmt::format("run.threads={}", sweep.threads));
  command.insert(command.end(), run.overrides.begin(), run.overrides.end());
  return command;
}

std::string sweep_difference(const std::string& stored, const std::string& now) {
  const auto changes_no_loss = [](const std::string& key) {
    constexpr std::string_view free[] = {"run.name",          "run.dir",           "run.threads", "run.walltime",
                                         "run.abort_timeout", "run.start_timeout", "sweep.jobs",  "sweep.threads"};
    return std::find(std::begin(free), std::end(free), key) != std::end(free) || key.starts_with("machine.") ||
           key.starts_with("checkpoint.");
  };
  const FlatDeck before = flat_deck(stored), after = flat_deck(now);
  std::set<std::string> keys;
  for (const FlatDeck* deck : {&before, &after})
    for (const auto& [key, value] : *deck)
      if (!changes_no_loss(key)) keys.insert(key);
  std::string lines;
  for (const std::string& key : keys) {
    const std::string old_value = value_of(before, key), new_value = value_of(after, key);
    if (old_value != new_value) lines += fmt::format("\n  {}: {} there, {} now", key, old_value, new_value);
  }
  return lines;
}

}  // namespace sestina
