#include "app/start/rank_deck.hpp"

#include <algorithm>
#include <numeric>

#include "app/start/deck_layers.hpp"

namespace sestina {

double find_start_timeout(const DeckArguments& arguments) try {
  Deck deck = layered_deck(arguments);
  return RunOptions::read(deck).start_timeout;
} catch (const Error&) {
  return RunOptions().start_timeout;
}

void take_all_ranks(DeckArguments& arguments, const std::string& stored, const std::string& stored_where, int ranks) {
  if (given_deck(arguments).has("parallel.dp")) return;
  Deck deck = layered_deck(arguments, stored, stored_where);
  const std::int64_t tp = deck.integer("parallel.tp", 1), pp = deck.integer("parallel.pp", 1);
  if (pp > 1)
    arguments.overrides.push_back("parallel.dp=1");
  else if (tp > 0 && ranks % tp == 0)
    arguments.overrides.push_back(fmt::format("parallel.dp={}", ranks / tp));
}

void take_forward_ranks(DeckArguments& arguments, const std::string& stored, const std::string& stored_where,
                        int ranks) {
  if (ranks == 1) {
    for (const char* one : {"parallel.dp=1", "parallel.tp=1", "parallel.pp=1"}) arguments.overrides.push_back(one);
    return;
  }
  Deck deck = layered_deck(arguments, stored, stored_where);
  const std::int64_t tp = std::max<std::int64_t>(deck.integer("parallel.tp", 1), 1),
                     pp = std::max<std::int64_t>(deck.integer("parallel.pp", 1), 1);
  const std::int64_t groups = ranks / tp;
  arguments.overrides.push_back(
      fmt::format("parallel.dp={}", std::max<std::int64_t>(groups / std::gcd(groups, pp), 1)));
}

void require_ranks(Deck& deck, const ParallelOptions& parallel, int ranks) {
  const int in_stage = parallel.dp * parallel.tp;
  const std::string started = ranks == 1 ? "one was started" : fmt::format("{} were started", ranks);
  if (parallel.pp > 1) {
    if (ranks % in_stage == 0 && parallel.pp % (ranks / in_stage) == 0) return;
    deck.error("parallel.pp",
               fmt::format("{} stages do not lie evenly on the ranks: dp {} x tp {} x P ranks, {}", parallel.pp,
                           parallel.dp, parallel.tp, started),
               fmt::format("mpirun -n {} x P, where P divides {}", in_stage, parallel.pp));
    return;
  }
  if (in_stage == ranks) return;
  if (ranks % parallel.tp != 0) {
    deck.error("parallel.tp", fmt::format("does not divide the {} ranks that were started", ranks),
               fmt::format("mpirun -n with a multiple of {}", parallel.tp));
    return;
  }
  deck.error(
      "parallel.dp",
      fmt::format("the deck is for {} x {} = {} ranks (dp, tp), {}", parallel.dp, parallel.tp, in_stage, started),
      fmt::format("start it with mpirun -n {}, or omit parallel.dp", in_stage));
}

}  // namespace sestina
