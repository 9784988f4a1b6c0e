#include "app/start/deck_layers.hpp"

namespace sestina {
namespace {

void add_files(Deck& deck, const DeckArguments& arguments) {
  for (const std::string& path : arguments.files) deck.add(arguments.read->try_emplace(path, path).first->second);
}

void add_overrides(Deck& deck, const DeckArguments& arguments) {
  for (const std::string& assignment : arguments.overrides) deck.add_override(assignment);
}

// Another form of weights has other keys: those of the stored one would be unknown, and say nothing of what is wrong.
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
  return deck;
}

}  // namespace sestina
