// Keys of a matrix optimizer by name, for tests that know several kinds.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "core/deck/kinds.hpp"

namespace sestina {

inline KindKey key_of(const MatrixOptions& options, const std::string& name) {
  for (const KindKey& key : keys_of(options))
    if (key.name == name) return key;
  ADD_FAILURE() << options.kind << " has no key " << name;
  return {};
}
inline double number_of(const MatrixOptions& options, const std::string& name) { return key_of(options, name).value; }
inline std::string word_of(const MatrixOptions& options, const std::string& name) { return key_of(options, name).word; }

}  // namespace sestina
