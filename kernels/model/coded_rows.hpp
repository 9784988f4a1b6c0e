// A matrix in 8 bits whose rows carry their own scales, so that rows travel between ranks and lie in checkpoints as
// bytes. A row (coded_row_bytes of kernels/base/dtype.hpp): scales of its groups of columns, their codes of zero,
// codes. The last group of a row may be shorter; no group goes on in the next row. The range of a group includes 0
// always.
#pragma once
#include "kernels/base/dtype.hpp"
#include "kernels/model/code_grid.hpp"

namespace sestina {

struct CodedRow {
  float* scales;        // (groups)
  std::uint8_t* zeros;  // (groups)
  std::uint8_t* codes;  // (cols)
};

// In memory of a space that the call knows; begun on a multiple of four bytes.
struct CodedRows {
  std::uint8_t* data = nullptr;
  std::size_t rows = 0, cols = 0, group = 1;

  KOKKOS_INLINE_FUNCTION std::size_t groups() const { return (cols + group - 1) / group; }
  KOKKOS_INLINE_FUNCTION CodedRow row(std::size_t i) const {
    const std::size_t count = groups(), bytes = (count * (sizeof(float) + 1) + cols + 3) / 4 * 4;
    std::uint8_t* const begin = data + i * bytes;
    return {reinterpret_cast<float*>(begin), begin + count * sizeof(float), begin + count * (sizeof(float) + 1)};
  }
};

// The codes of w (rows, cols), rounded to nearest. Nothing fences, here and below.
template <class Exec, class A>
void encode_rows(const Exec&, Matrix<const A, Exec> w, const CodedRows&);

// w (rows, cols) from its codes, rounded to T.
template <class Exec, class T>
void decode_rows(const Exec&, const CodedRows&, Matrix<T, Exec> w);

}  // namespace sestina
