// Types of elements in files and of state. No Kokkos.
#pragma once
#include <cstddef>

namespace sestina {

enum class DType { f32, f64, bf16, i32, i64, u8, u16, u32 };
std::size_t size_of(DType);
const char* name(DType);

// A row of numbers in 8 bits (kernels/model/quantise.hpp): scales of its groups of columns, codes of zero, codes, and
// what fills a multiple of four, so that rows lie side by side.
constexpr std::size_t coded_row_bytes(std::size_t cols, std::size_t group) {
  const std::size_t groups = (cols + group - 1) / group;
  return (groups * (sizeof(float) + 1) + cols + 3) / 4 * 4;
}

}  // namespace sestina
