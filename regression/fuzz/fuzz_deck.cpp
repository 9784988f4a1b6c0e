// The deck parser on arbitrary bytes: a file, or (first byte '=') an override. Only Error(bad_deck) may come out, and
// what is accepted must survive its own dump.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sestina;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (text.find("from_hf") != text.npos) return 0;  // would open files
  Deck deck;
  if (!text.empty() && text[0] == '=') {
    deck.add_text("[model]\npreset = \"llama-8m\"\n", "base", "/");
    deck.add_override(text.substr(1));
  } else {
    deck.add_text(text, "fuzz.toml", "/");
  }
  try {
    Options::read(deck);
    deck.finish();
  } catch (const Error& error) {
    if (error.code() != ExitCode::bad_deck) std::abort();
    return 0;
  }
  const std::string dump = deck.dump();
  Deck again;
  again.add_text(dump, "dump", "/");
  Options::read(again);
  again.finish();
  if (again.dump() != dump || !forbidden_changes(deck, again).empty()) std::abort();
  return 0;
}
