#include "app/start/deck_layers.hpp"

namespace sestina {

namespace {

// Another form of weights has other keys: those of the stored one would be unknown, and say nothing of what is wrong.
void drop_other_form(Deck& stored, const DeckArguments& arguments) {
  constexpr const char *section = "model.linear", *key = "model.linear.form";
  Deck given;
  if (!arguments.deck.empty()) given.add_file(arguments.deck);
  for (const auto& assignment : arguments.overrides) given.add_override(assignment);
  if (!given.has(key)) return;
  const std::string form = stored.text(key, "dense");
  if (given.text(key, form) != form) stored.replace_section(section, "form", form);
}

}  // namespace

Deck layered_deck(const DeckArguments& arguments, const std::string& stored, const std::string& stored_where) {
  if (stored.empty() && arguments.deck.empty() && arguments.overrides.empty() && arguments.hf.empty())
    fail(ExitCode::usage, "no deck: give one with -i DECK (examples: inputs/*.toml), or keys as section.key=value");
  Deck deck;
  if (!stored.empty()) deck.add_text(stored, stored_where, "");
  if (!stored.empty()) drop_other_form(deck, arguments);
  if (!arguments.deck.empty()) deck.add_file(arguments.deck);
  if (!arguments.hf.empty()) deck.replace_section("model", "from_hf", arguments.hf);
  for (const auto& assignment : arguments.overrides) deck.add_override(assignment);
  return deck;
}

}  // namespace sestina
