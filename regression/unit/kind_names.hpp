// The table of matrix optimizers, for tests that take each of them in turn.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"

namespace sestina {

inline std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const MatrixKind& kind : matrix_kinds()) names.push_back(kind.name);
  return names;
}

// Those whose matrices are cut into blocks where a side is long (MatrixKind::max_dim).
inline std::vector<std::string> cut_kind_names() {
  std::vector<std::string> names;
  for (const MatrixKind& kind : matrix_kinds())
    if (kind.max_dim != nullptr) names.push_back(kind.name);
  return names;
}

// GoogleTest wants identifiers.
inline std::string kind_test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace sestina
