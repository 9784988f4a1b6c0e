#include "app/bench/bench.hpp"

#include <algorithm>

#include "app/start/memory_check.hpp"
#include "app/start/rank_run.hpp"
#include "app/start/run_deck.hpp"
#include "app/train/rank_agreement.hpp"
#include "core/optimizer/base/routing.hpp"

namespace sestina {

Options bench_options(const BenchArguments& arguments) {
  Deck deck = layered_deck(arguments.deck);
  const Options options = Options::read(deck);
  require_one_rank(deck, options.parallel);
  deck.finish();
  plan_that_fits(options);
  return options;
}

StepOptions bench_step_options(const BenchArguments& arguments, Runtime& runtime) {
  warn_on_stderr(runtime);
  runtime.begin_phase("comparing the programs");
  require_agreement(runtime.world(), program_statements(), ExitCode::bad_deck);
  Options options;
  std::vector<Statement> said;
  runtime.phase("reading the deck", [&] {
    DeckArguments layers = arguments.deck;
    take_all_ranks(layers, "", "", runtime.size());
    Deck deck = layered_deck(layers);
    options = Options::read(deck);
    require_trainable(deck, options);
    require_matching_groups(deck, options);
    require_ranks(deck, options.parallel, runtime.size());
    deck.finish();
    said = deck_statements(deck, given_deck(arguments.deck));
    said.push_back({"--steps", std::to_string(arguments.steps), "", true});
    said.push_back({"--warmup", std::to_string(arguments.warmup), "", true});
    said.push_back({"--machine", arguments.machine.empty() ? "not given" : "given", "", true});
  });
  require_agreement(runtime.world(), said, ExitCode::bad_deck);
  runtime.set_start_timeout(options.run.start_timeout);
  Plan plan;
  runtime.phase("comparing the memory",
                [&] { plan = plan_that_fits(options, runtime.rank(), runtime.size(), runtime.node_ranks()).plan; });
  return {options, plan};
}

}  // namespace sestina
