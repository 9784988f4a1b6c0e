// The keys of one optimizer, declared once. A plain struct holds them typed, with their defaults as initial values, and
// its fields(OptionFields&) names each key with its member and with what it may be. Visitors read them from a deck,
// list them for documents and tests, or set one by its name (core/deck/kinds.cpp). No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "core/deck/deck.hpp"

namespace sestina {

// What keeps a divisor from being 0 (rows of an embedding without a gradient have a second moment of 0): not 0 in
// single precision either.
inline constexpr DeckRange eps_range{.min = std::numeric_limits<float>::min()};

class OptionFields {
 public:
  virtual ~OptionFields() = default;
  virtual void number(const char* key, double& value, DeckRange = {.min = 0}) = 0;
  virtual void integer(const char* key, std::int64_t& value, DeckRange = {.min = 0}) = 0;
  virtual void flag(const char* key, bool& value) = 0;
  virtual void word(const char* key, std::string& value, const std::vector<std::string>& choices) = 0;

  void eps(const char* key, double& value) { number(key, value, eps_range); }

  // A word for each value of an enumeration, in its order.
  template <class Enum>
  void choice(const char* key, Enum& value, std::initializer_list<const char*> words) {
    const std::vector<std::string> choices(words.begin(), words.end());
    std::string chosen = choices[static_cast<std::size_t>(value)];
    word(key, chosen, choices);
    value = static_cast<Enum>(std::find(choices.begin(), choices.end(), chosen) - choices.begin());
  }

  // A key that states what cannot be chosen.
  void only(const char* key, const char* value) {
    std::string chosen = value;
    word(key, chosen, {chosen});
  }
};

// Words that several optimizers share.
// Where first bases and projectors come from: the eigenvectors of the Gram matrix of the shorter side, or an SVD of the
// whole matrix, which are the same as far as the rounding of an fp32 matrix leaves them (refresh/cold_bases.cpp).
enum class BasisForm : std::uint8_t { gram, svd };
enum class Order : std::uint8_t { after, before };              // of the step
enum class FirstStep : std::uint8_t { skip, use };              // the first call only sets up bases and factors, or not
enum class MomentumBasis : std::uint8_t { original, rotated };  // rotated: the rotated momentum is kept too

}  // namespace sestina
