// Q of a QR decomposition on one host thread, by blocked Householder reflections whose work is in matrix products: half
// the time of LAPACK's geqrf and orgqr for m = n = 1024. Column-major.
#pragma once
#include <cstddef>

namespace sestina::host {

// Returns the distance of the columns of column-major matrices with m rows: columns that lie a multiple of a large
// power of two apart fall into the same cache sets, which doubles the time for m = 1024.
constexpr std::size_t padded_rows(std::size_t m) { return m + 16; }

// Replaces A (m, n), n <= p <= m, whose columns lie padded_rows(m) apart with room for p of them, by the first p
// columns of Q; false where LAPACK fails. scratch: householder_scratch(m, p) elements. T is float or double.
template <class T>
bool form_q(std::size_t m, std::size_t n, std::size_t p, T* a, T* scratch);
std::size_t householder_scratch(std::size_t m, std::size_t p);

}  // namespace sestina::host
