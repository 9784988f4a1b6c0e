// `sestina plan`: shows what a run will need, from the deck alone and for any number of ranks: who owns what, loads,
// bytes by kind, what is sent, FLOPs, and time where [machine] gives speeds.
#include <chrono>

#include "app/command/verbs.hpp"
#include "app/start/run_deck.hpp"
#include "app/verbs/run_plan.hpp"
#include "core/optimizer/base/routing.hpp"

namespace sestina {

int run_plan(const PlanArguments& arguments) {
  Deck deck = layered_deck(arguments.deck);
  const Options options = Options::read(deck);
  require_matching_groups(deck, options);
  require_whole_blocks(deck, options);
  require_state_tier(deck, options);
  deck.finish();
  if (!arguments.reading.empty()) {
    const PaperReading reading = canzona_reading(options.model, options.parallel.dp, options.parallel.tp);
    arguments.json ? print_json(reading) : print_text(reading);
    return static_cast<int>(ExitCode::done);
  }
  const auto start = std::chrono::steady_clock::now();
  RunPlan run = make_run_plan(options);
  run.planning_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  arguments.json ? print_json(run) : print_text(run);
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina
