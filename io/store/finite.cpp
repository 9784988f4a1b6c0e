#include "io/store/finite.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace sestina {
namespace {

// Infinities and NaNs are the values whose exponent bits are all set.
template <class Bits>
std::optional<std::size_t> first_with(Bits exponent, const void* data, std::size_t bytes) {
  constexpr std::size_t block = 4096;  // values that are looked at together: such a loop is vectorised
  const auto* values = static_cast<const Bits*>(data);
  const std::size_t n = bytes / sizeof(Bits);
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t end = std::min(n, begin + block);
    unsigned bad = 0;
    for (std::size_t i = begin; i < end; ++i) bad |= (values[i] & exponent) == exponent ? 1u : 0u;
    if (bad == 0) continue;
    for (std::size_t i = begin;; ++i)
      if ((values[i] & exponent) == exponent) return i;
  }
  return std::nullopt;
}

double value_of(DType dtype, const void* bytes) {
  if (dtype == DType::f64) {
    double value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint32_t bits = 0;
  if (dtype == DType::f32) {
    std::memcpy(&bits, bytes, sizeof bits);
  } else {
    std::uint16_t upper;
    std::memcpy(&upper, bytes, sizeof upper);
    bits = static_cast<std::uint32_t>(upper) << 16;
  }
  return static_cast<double>(std::bit_cast<float>(bits));
}

}  // namespace

std::optional<std::size_t> first_nonfinite(DType dtype, const void* data, std::size_t bytes) {
  switch (dtype) {
    case DType::f32:
      return first_with<std::uint32_t>(0x7f800000u, data, bytes);
    case DType::f64:
      return first_with<std::uint64_t>(0x7ff0000000000000u, data, bytes);
    case DType::bf16:
      return first_with<std::uint16_t>(0x7f80u, data, bytes);
    default:
      return std::nullopt;
  }
}

std::string nonfinite_text(const StateField& field, const void* at, std::size_t index) {
  const auto cols = static_cast<std::size_t>(std::max<std::int64_t>(field.row_elements(), 1));
  const double value = value_of(field.dtype, at);
  return fmt::format("{} holds a value that is not finite ({} at row {}, column {})", field.path,
                     value != value ? "nan"
                     : value > 0    ? "inf"
                                    : "-inf",
                     static_cast<std::size_t>(field.row_begin) + index / cols,
                     static_cast<std::size_t>(field.has_all_columns() ? 0 : field.col_begin) + index % cols);
}

void require_finite(const StateField& field, const void* data, ExitCode code, const std::string& where) {
  if (const auto index = first_nonfinite(field.dtype, data, field.bytes()))
    fail(code, "{}: {}", where,
         nonfinite_text(field, static_cast<const std::byte*>(data) + *index * size_of(field.dtype), *index));
}

}  // namespace sestina
