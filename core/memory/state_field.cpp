#include "core/memory/state_field.hpp"

namespace sestina {

std::int64_t StateField::row_elements() const {
  std::int64_t n = has_all_columns() || shape.size() < 2 ? 1 : col_end - col_begin;
  for (std::size_t i = has_all_columns() ? 1 : 2; i < shape.size(); ++i) n *= shape[i];
  return n;
}

void places_to_whole(const StateField& field, void* host) {
  if (!field.of_places) return;
  auto* const places = static_cast<std::int32_t*>(host);
  for (std::int64_t i = 0; i < field.row_end - field.row_begin; ++i)
    places[i] += static_cast<std::int32_t>(field.row_begin);
}

bool places_from_whole(const StateField& field, void* host) {
  if (!field.of_places) return true;
  auto* const places = static_cast<std::int32_t*>(host);
  bool inside = true;
  for (std::int64_t i = 0; i < field.row_end - field.row_begin; ++i) {
    inside = inside && field.row_begin <= places[i] && places[i] < field.row_end;
    places[i] -= static_cast<std::int32_t>(field.row_begin);
  }
  return inside;
}

}  // namespace sestina
