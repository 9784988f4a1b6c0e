// Decks in tests of their options: a model, and what else a test gives.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {

inline const std::string model = "[model]\npreset = \"llama-8m\"\n";

inline Options read(const std::string& toml) {
  Deck deck;
  deck.add_text(model + toml, "a.toml", "/folder");
  Options options = Options::read(deck);
  deck.finish();
  return options;
}

inline std::string error_of(const std::string& toml) {
  try {
    read(toml);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_deck);
    return error.what();
  }
  return "";
}

inline void expect_error(const std::string& toml, const std::string& part) {
  const std::string error = error_of(toml);
  EXPECT_NE(error.find(part), std::string::npos) << toml << "\n\"" << part << "\" is not in:\n" << error;
}

// What is wrong with a deck that has been read; "" where nothing is.
inline std::string complaint(Deck& deck) {
  try {
    deck.finish();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace sestina
