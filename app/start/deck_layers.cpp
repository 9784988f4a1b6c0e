#include "app/start/deck_layers.hpp"

namespace sestina {

Deck layered_deck(const DeckArguments& arguments, const std::string& stored, const std::string& stored_where) {
  if (stored.empty() && arguments.deck.empty() && arguments.overrides.empty() && arguments.hf.empty())
    fail(ExitCode::usage, "no deck: give one with -i DECK (examples: inputs/*.toml), or keys as section.key=value");
  Deck deck;
  if (!stored.empty()) deck.add_text(stored, stored_where, "");
  if (!arguments.deck.empty()) deck.add_file(arguments.deck);
  if (!arguments.hf.empty()) deck.replace_section("model", "from_hf", arguments.hf);
  for (const auto& assignment : arguments.overrides) deck.add_override(assignment);
  return deck;
}

}  // namespace sestina
