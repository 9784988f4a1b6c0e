#include "core/layout/state_field.hpp"

namespace sestina {

std::int64_t StateField::row_elements() const {
  std::int64_t n = has_all_columns() || shape.size() < 2 ? 1 : col_end - col_begin;
  for (std::size_t i = has_all_columns() ? 1 : 2; i < shape.size(); ++i) n *= shape[i];
  return n;
}

}  // namespace sestina
