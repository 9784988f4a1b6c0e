#include "kernels/model/block_rotations.hpp"

#include <algorithm>

namespace sestina {

namespace {

constexpr std::size_t chunk = 256;  // rows: of 1024 columns in float they fill a second-level cache

template <class Exec, class T>
Matrix<T, Exec> front(const Vector<T, Exec>& scratch, const Matrix<const T, Exec>& like) {
  SESTINA_REQUIRE(scratch.extent(0) >= like.size(), "scratch of {} for ({}, {})", scratch.extent(0), like.extent(0),
                  like.extent(1));
  return Matrix<T, Exec>(scratch.data(), like.extent(0), like.extent(1));
}

// A range of the rows of a matrix.
struct Rows {
  std::size_t begin, count;
  template <class M>
  M of(const M& x) const {
    return Kokkos::subview(x, std::pair(begin, begin + count), Kokkos::ALL);
  }
};

// Calls body(products, rows, room) for each chunk of the rows; room is as many rows of the lane's own, in a scratch
// matrix with as many rows in all.
template <class Exec, class Body>
void by_chunks(Gemm<Exec>& gemm, std::size_t rows, const Body& body) {
  gemm.side_by_side((rows + chunk - 1) / chunk, [&](Gemm<Serial>& products, std::size_t item, std::size_t lane) {
    const std::size_t begin = item * chunk, count = std::min(chunk, rows - begin);
    body(products, Rows{begin, count}, Rows{lane * chunk, count});
  });
}

}  // namespace

template <class Exec, class T>
void put_times_blocks(const Exec& exec, Gemm<Exec>& gemm, Matrix<const T, Exec> x,
                      Vector<const std::int32_t, Exec> index, Op op, Matrix<const T, Exec> blocks,
                      Vector<T, Exec> scratch, Matrix<T, Exec> y) {
  const Matrix<T, Exec> permuted = front<Exec, T>(scratch, x);
  if constexpr (is_host<Exec>) {
    by_chunks(gemm, x.extent(0), [&](Gemm<Serial>& products, const Rows& rows, const Rows& room) {
      put_columns<Serial, T>(products.exec(), rows.of(x), index, room.of(permuted));
      times_blocks<Serial, T>(products.exec(), products, room.of(permuted), op, blocks, rows.of(y));
    });
  } else {
    put_columns<Exec, T>(exec, x, index, permuted);
    times_blocks<Exec, T>(exec, gemm, permuted, op, blocks, y);
  }
}

template <class Exec, class T>
void times_blocks_take(const Exec& exec, Gemm<Exec>& gemm, Matrix<const T, Exec> x, Op op, Matrix<const T, Exec> blocks,
                       Vector<const std::int32_t, Exec> index, bool add, Vector<T, Exec> scratch, Matrix<T, Exec> y) {
  const Matrix<T, Exec> z = front<Exec, T>(scratch, x);
  if constexpr (is_host<Exec>) {
    by_chunks(gemm, x.extent(0), [&](Gemm<Serial>& products, const Rows& rows, const Rows& room) {
      times_blocks<Serial, T>(products.exec(), products, rows.of(x), op, blocks, room.of(z));
      take_columns<Serial, T>(products.exec(), room.of(z), index, add, rows.of(y));
    });
  } else {
    times_blocks<Exec, T>(exec, gemm, x, op, blocks, z);
    take_columns<Exec, T>(exec, z, index, add, y);
  }
}

#define SESTINA_PERMUTED(Exec, T)                                                                                      \
  template void put_times_blocks<Exec, T>(const Exec&, Gemm<Exec>&, Matrix<const T, Exec>,                             \
                                          Vector<const std::int32_t, Exec>, Op, Matrix<const T, Exec>,                 \
                                          Vector<T, Exec>, Matrix<T, Exec>);                                           \
  template void times_blocks_take<Exec, T>(const Exec&, Gemm<Exec>&, Matrix<const T, Exec>, Op, Matrix<const T, Exec>, \
                                           Vector<const std::int32_t, Exec>, bool, Vector<T, Exec>, Matrix<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_PERMUTED)
SESTINA_PERMUTED(Serial, float)  // replay of golden files

}  // namespace sestina
