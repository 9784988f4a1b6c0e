// A section [model] as a deck has it, for tests.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "core/deck/deck.hpp"
#include "core/deck/model_config.hpp"

namespace sestina {

// Reads the section, and once more what the deck says of itself, which must describe the same model.
inline ModelConfig read_model(const std::string& toml) {
  Deck deck;
  deck.add_text("[model]\n" + toml, "deck", ".");
  const ModelConfig c = ModelConfig::read(deck);
  deck.finish();
  Deck again;
  again.add_text(deck.dump(), "dump", ".");
  const ModelConfig back = ModelConfig::read(again);
  again.finish();
  EXPECT_EQ(back.to_hf_json(), c.to_hf_json()) << deck.dump();
  return c;
}

}  // namespace sestina
