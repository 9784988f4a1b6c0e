#include "app/start/run_deck.hpp"

#include <algorithm>
#include <numeric>

#include "core/optimizer/base/routing.hpp"

namespace sestina {

namespace {

void add_files(Deck& deck, const DeckArguments& arguments) {
  for (const std::string& path : arguments.files) deck.add(arguments.read->try_emplace(path, path).first->second);
}

void add_overrides(Deck& deck, const DeckArguments& arguments) {
  for (const std::string& assignment : arguments.overrides) deck.add_override(assignment);
}

// Another form of weights has other keys: those of the stored form would be reported as unknown, which hides the real
// error.
void drop_other_form(Deck& stored, const DeckArguments& arguments) {
  constexpr const char *section = "model.linear", *key = "model.linear.form";
  Deck given = given_deck(arguments);
  if (!given.has(key)) return;
  const std::string form = stored.text(key, "dense");
  if (given.text(key, form) != form) stored.replace_section(section, "form", form);
}

}  // namespace

Deck given_deck(const DeckArguments& arguments) {
  Deck deck;
  add_files(deck, arguments);
  add_overrides(deck, arguments);
  return deck;
}

Deck layered_deck(const DeckArguments& arguments, const std::string& stored, const std::string& stored_where) {
  if (stored.empty() && arguments.empty() && arguments.hf.empty())
    fail(ExitCode::usage, "no deck: give one with -i DECK (examples: inputs/*.toml), or keys as section.key=value");
  Deck deck;
  if (!stored.empty()) deck.add_text(stored, stored_where, "");
  if (!stored.empty()) drop_other_form(deck, arguments);
  add_files(deck, arguments);
  if (!arguments.hf.empty()) deck.replace_section("model", "from_hf", arguments.hf);
  add_overrides(deck, arguments);
  if (arguments.model_is_stored) deck.forget("model.from_hf");
  deck.forget("sweep");  // it is about many runs
  return deck;
}

Options read_trainable(Deck& deck) {
  Options options = Options::read(deck);
  require_training_keys(deck);
  require_trainable(deck, options);
  require_matching_groups(deck, options);
  return options;
}

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
  if (given_deck(arguments).has("parallel.ep")) return;  // the stored number fits the ranks that wrote it
  const std::int64_t ep = deck.integer("parallel.ep", 1), dp = pp > 1 || tp < 1 ? 1 : ranks / tp;
  if (ep > 1 && dp > 0 && dp % ep != 0) arguments.overrides.push_back(fmt::format("parallel.ep={}", std::gcd(ep, dp)));
}

void take_forward_ranks(DeckArguments& arguments, const std::string& stored, const std::string& stored_where,
                        int ranks) {
  arguments.overrides.push_back("parallel.ep=1");
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

void take_decoding_ranks(DeckArguments& arguments, int ranks) {
  if (ranks == 1) return;
  Deck given = given_deck(arguments);
  const std::int64_t tp = given.integer("parallel.tp", ranks), pp = given.integer("parallel.pp", 1);
  if (tp != ranks)
    fail(ExitCode::bad_deck,
         "parallel.tp: all ranks share the heads of each layer and the vocabulary, and {} were started, got {}; "
         "allowed: {}, or mpirun -n {}",
         ranks, tp, ranks, std::max<std::int64_t>(tp, 1));
  if (pp != 1)
    fail(
        ExitCode::bad_deck,
        "parallel.pp: a token passes through all layers before the next one, so stages would wait for one another, got "
        "{}; allowed: 1, with all ranks tensor parallel",
        pp);
  arguments.overrides.push_back(fmt::format("parallel.tp={}", ranks));
  arguments.overrides.push_back("parallel.pp=1");
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
