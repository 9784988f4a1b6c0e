// Types of elements in files and of state. No Kokkos.
#pragma once
#include <cstddef>

namespace sestina {

enum class DType { f32, f64, bf16, i32, i64, u8, u16, u32 };
std::size_t size_of(DType);
const char* name(DType);

// Returns the bytes of a row of numbers in 8 bits (kernels/model/quantise.hpp): the scales of its groups of columns,
// the codes of zero, the codes, and padding to a multiple of four, so that rows lie next to each other.
constexpr std::size_t coded_row_bytes(std::size_t cols, std::size_t group) {
  const std::size_t groups = (cols + group - 1) / group;
  return (groups * (sizeof(float) + 1) + cols + 3) / 4 * 4;
}

}  // namespace sestina
