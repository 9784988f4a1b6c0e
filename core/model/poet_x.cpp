#include "core/model/poet_x.hpp"

#include <type_traits>

#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/block_rotations.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
Vector<T, Exec> as_vector(const Matrix<T, Exec>& m) {
  return Vector<T, Exec>(m.data(), m.size());
}

// Both ends of a linear layer in scratch of the caller's frame; a narrower one is the front of a sheet.
template <class Exec, class T>
class Sheets {
 public:
  Sheets(Workspace<Exec>& workspace, std::size_t rows, const PoetWeight<Exec, T>& w)
      : workspace_(workspace), rows_(rows), wide_(std::max(w.rows(), w.cols())) {}
  Vector<T, Exec> sheet() { return workspace_.template take<T>(rows_ * wide_); }
  Matrix<T, Exec> of(const Vector<T, Exec>& sheet, std::size_t width) const {
    return Matrix<T, Exec>(sheet.data(), rows_, width);
  }

 private:
  Workspace<Exec>& workspace_;
  std::size_t rows_, wide_;
};

// Returns the blocks (t, b) of one side, in scratch of the caller's frame.
template <class E, class Exec>
Matrix<E, Exec> rotation(const ProductSpace<Exec>& s, const PoetOptions& options, const Vector<Acc<E>, Exec>& theta) {
  const Matrix<E, Exec> blocks = s.workspace.template take<E>(options.turned_by(theta.extent(0)), options.block);
  cayley_neumann<Exec, E>(s.exec, s.gemm, s.workspace, options.fourth, theta, blocks);
  return blocks;
}

// Returns room for the blocks of both sides, in scratch of the caller's frame.
template <class E, class Exec, class T>
PoetBlocks<Exec, E> take_blocks(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w) {
  const std::size_t in = options.turned_by(w.rotation_in.extent(0)), out = options.turned_by(w.rotation_out.extent(0));
  return {s.workspace.template take<E>(in + out, options.block), in};
}
// Returns the blocks of both sides, by one series.
template <class E, class Exec, class T>
PoetBlocks<Exec, E> both_rotations(const ProductSpace<Exec>& s, const PoetOptions& options,
                                   const PoetWeight<Exec, T>& w) {
  const PoetBlocks<Exec, E> blocks = take_blocks<E>(s, options, w);
  cayley_neumann<Exec, E>(s.exec, s.gemm, s.workspace, options.fourth, {w.rotation_in, w.rotation_out}, blocks.all);
  return blocks;
}

// Returns the base as values, in scratch of the caller's frame where codes are kept.
template <class Exec, class T>
Matrix<const T, Exec> base_values(const ProductSpace<Exec>& s, const PoetOptions& options,
                                  const PoetWeight<Exec, T>& w) {
  if (options.group == 0) return w.base.values;
  const Matrix<T, Exec> values = s.workspace.template take<T>(w.rows(), w.cols());
  group_dequantise<Exec, T>(s.exec, w.base.coded, as_vector<Exec, T>(values));
  return values;
}

// Computes c (N, out) from x and the blocks of the inputs, by way of two sheets; c may lie in the first one.
template <class Exec, class T>
void inner_product(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                   Matrix<const T, Exec> blocks, Matrix<const T, Exec> x, const Vector<T, Exec>& first,
                   const Matrix<T, Exec>& a, const Matrix<T, Exec>& c) {
  auto frame = s.workspace.frame();
  put_times_blocks<Exec, T>(s.exec, s.gemm, x, w.perm_in, Op::none, blocks, first, a);
  s.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, a, base_values(s, options, w), 0, c);
}

// What the gradients of the rotations are made of, see poet_backward_rotations.
template <class Exec, class T>
struct SideInput {
  Matrix<const T, Exec> dy, x, kept, d_inner;
};
// Calls body(left, right, output) for the outputs and the inputs: the gradient of the side's blocks are the diagonal
// blocks of left^T right, both (N, n) and in scratch.
template <class Exec, class T, class Body>
void for_sides(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
               const SideInput<Exec, T>& in, const Body& body) {
  auto frame = s.workspace.frame();
  Sheets<Exec, T> sheets(s.workspace, in.dy.extent(0), w);
  const Vector<T, Exec> first = sheets.sheet(), second = sheets.sheet();
  Matrix<const T, Exec> c = in.kept;
  if (in.kept.size() == 0) {
    const Matrix<T, Exec> again = sheets.of(first, w.rows());
    auto inner = s.workspace.frame();
    inner_product<Exec, T>(s, options, w, rotation<T>(s, options, w.rotation_in), in.x, first,
                           sheets.of(second, w.cols()), again);
    c = again;
  }
  const Matrix<T, Exec> g = sheets.of(second, w.rows());
  put_columns<Exec, T>(s.exec, in.dy, w.perm_out, g);
  body(c, Matrix<const T, Exec>(g), true);
  const Matrix<T, Exec> permuted = sheets.of(first, w.cols());
  put_columns<Exec, T>(s.exec, in.x, w.perm_in, permuted);
  body(Matrix<const T, Exec>(permuted), in.d_inner, false);
}

// Returns the inverse of an index, in scratch of the caller's frame: index[result[i]] = result[index[i]] = i.
template <class Exec>
Vector<std::int32_t, Exec> inverse_of(const ProductSpace<Exec>& s, const Vector<std::int32_t, Exec>& index) {
  const Vector<std::int32_t, Exec> inverse = s.workspace.template take<std::int32_t>(index.extent(0));
  invert_index<Exec>(s.exec, index, inverse);
  return inverse;
}

template <class Exec>
Vector<const std::int32_t, Exec> part_of(const Vector<std::int32_t, Exec>& index, std::size_t first, std::size_t n) {
  return Vector<const std::int32_t, Exec>(index.data() + first, n);
}

// Returns a copy in scratch of the caller's frame, or nothing for an empty matrix.
template <class Exec, class E>
Matrix<E, Exec> copy_of(const ProductSpace<Exec>& s, const Matrix<E, Exec>& x) {
  if (x.size() == 0) return {};
  const Matrix<E, Exec> copy = s.workspace.template take<E>(x.extent(0), x.extent(1));
  Kokkos::deep_copy(s.exec, as_vector<Exec, E>(copy), as_vector<Exec, E>(x));
  return copy;
}

// Rows of a base as numbers to be rotated: values, with residuals or without, or else codes.
template <class Exec, class T>
struct BaseRows {
  Matrix<const T, Exec> values = {};
  Matrix<const std::uint8_t, Exec> residuals = {};
  GroupCodes<Exec, Acc<T>> coded = {};

  // Widens the rows from `first` on to the type of sums, x (n, in).
  void widen(const Exec& exec, std::size_t first, const Matrix<Acc<T>, Exec>& x) const {
    const std::size_t begin = first * x.extent(1), n = x.size();
    const Vector<Acc<T>, Exec> to(x.data(), n);
    if (values.size() == 0) return widen_codes<Exec, Acc<T>>(exec, coded, begin, to);
    const Vector<const T, Exec> from(values.data() + begin, n);
    if constexpr (std::is_same_v<T, bf16>)
      if (residuals.size() > 0)
        return widen_with_residual<Exec>(exec, from, Vector<const std::uint8_t, Exec>(residuals.data() + begin, n), to);
    convert<Exec, T, Acc<T>>(exec, from, to);
  }
};

// Computes y (n, N) = blockdiag(G)^T x for the n rows of a side of `all` that begin at `first`, where a block begins;
// each of the blocks (t, b) lies in these rows or outside of them.
template <class Exec, class A>
void turn_rows(const ProductSpace<Exec>& s, const Matrix<A, Exec>& blocks, std::size_t all, std::size_t first,
               const Matrix<A, Exec>& x, const Matrix<A, Exec>& y) {
  const std::size_t b = blocks.extent(1), n = x.extent(0);
  const std::size_t apart = FirstBlock(blocks.extent(0), b).apart_on(all);
  const auto stacked = [&](std::size_t row, std::size_t rows) {
    return Matrix<const A, Exec>(blocks.data() + row * b, rows, b);
  };
  if (apart == b) return blocks_times<Exec, A>(s.gemm, Op::transpose, stacked(first, n), x, y);
  Kokkos::deep_copy(s.exec, as_vector<Exec, A>(y), as_vector<Exec, A>(x));
  for (std::size_t block = (first + apart - 1) / apart; block * apart < first + n; ++block) {
    const auto rows = std::pair(block * apart - first, block * apart - first + b);
    blocks_times<Exec, A>(s.gemm, Op::transpose, stacked(block * b, b), Kokkos::subview(x, rows, Kokkos::ALL),
                          Kokkos::subview(y, rows, Kokkos::ALL));
  }
}

// Calls body(tile, first) with the rows of blockdiag(G_out)^T H blockdiag(G_in)^T from `first` on, in scratch that the
// next tile takes again.
template <class Exec, class T, class Body>
void for_rotated_rows(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                      const BaseRows<Exec, T>& base, const Body& body) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  const std::size_t in = w.cols(), most = options.tile_rows(w.rows(), in);
  const Matrix<A, Exec> of_in = rotation<A>(s, options, w.rotation_in),
                        of_out = rotation<A>(s, options, w.rotation_out),
                        first_tile = s.workspace.template take<A>(most, in),
                        second_tile = s.workspace.template take<A>(most, in);
  for (std::size_t first = 0; first < w.rows(); first += most) {
    const std::size_t n = std::min(most, w.rows() - first);
    const Matrix<A, Exec> x(first_tile.data(), n, in), y(second_tile.data(), n, in);
    base.widen(s.exec, first, x);
    times_blocks<Exec, A>(s.exec, s.gemm, x, Op::transpose, of_in, y);
    turn_rows<Exec, A>(s, of_out, w.rows(), first, y, x);
    body(x, first);
  }
}

// Puts rows into a base at their places: values at once, codes when all of them are there.
template <class Exec, class T>
class PutBase {
 public:
  using A = Acc<T>;
  // Takes scratch of the caller's frame.
  PutBase(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w)
      : s_(s), options_(options), base_(w.base) {
    if (options.group > 0) held_ = s.workspace.template take<A>(w.rows(), w.cols());
  }
  void put(const Matrix<const A, Exec>& x, const Vector<const std::int32_t, Exec>& rows,
           const Vector<const std::int32_t, Exec>& cols) const {
    if (options_.group > 0) return put_elements<Exec, A, A>(s_.exec, x, rows, cols, held_);
    if constexpr (std::is_same_v<T, bf16>)
      if (base_.residuals.size() > 0)
        return put_with_residual<Exec>(s_.exec, x, rows, cols, base_.values, base_.residuals);
    put_elements<Exec, A, T>(s_.exec, x, rows, cols, base_.values);
  }
  void finish() const {
    if (options_.group > 0)
      group_quantise<Exec, A>(s_.exec, as_vector<Exec, A>(held_), options_.zero_in_range, base_.coded);
  }

 private:
  const ProductSpace<Exec>& s_;
  const PoetOptions& options_;
  const PoetBase<Exec, T>& base_;
  Matrix<A, Exec> held_;
};

// Sets, or adds to, the gradients of both rotations from those of the blocks, which are used up.
template <class Exec, class A, class T>
void rotations_from_blocks(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                           const PoetBlocks<Exec, A>& d, bool accumulate, const PackedBlocks<Exec, A>& d_rotations) {
  cayley_neumann_backward<Exec, A>(s.exec, s.gemm, s.workspace, options.fourth, {w.rotation_in, w.rotation_out}, d.all,
                                   accumulate, d_rotations);
}

}  // namespace

template <class Exec, class T>
void poet_forward(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                  Matrix<const T, Exec> x, Matrix<T, Exec> kept, Matrix<T, Exec> y) {
  auto frame = s.workspace.frame();
  Sheets<Exec, T> sheets(s.workspace, x.extent(0), w);
  const Vector<T, Exec> first = sheets.sheet(), second = sheets.sheet();
  const Matrix<T, Exec> c = kept.size() > 0 ? kept : sheets.of(first, w.rows());
  const PoetBlocks<Exec, T> blocks = both_rotations<T>(s, options, w);
  inner_product<Exec, T>(s, options, w, blocks.in(), x, first, sheets.of(second, w.cols()), c);
  times_blocks_take<Exec, T>(s.exec, s.gemm, c, Op::none, blocks.out(), w.perm_out, false, second, y);
}

template <class Exec, class T>
void poet_backward_input(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                         Matrix<const T, Exec> dy, bool add, Matrix<T, Exec> d_inner, Matrix<T, Exec> dx) {
  auto frame = s.workspace.frame();
  Sheets<Exec, T> sheets(s.workspace, dy.extent(0), w);
  const Vector<T, Exec> first = sheets.sheet(), second = sheets.sheet();
  const Matrix<T, Exec> dc = sheets.of(second, w.rows());
  const PoetBlocks<Exec, T> blocks = both_rotations<T>(s, options, w);
  put_times_blocks<Exec, T>(s.exec, s.gemm, dy, w.perm_out, Op::transpose, blocks.out(), first, dc);
  s.gemm.template operator()<T, T>(Op::none, Op::none, 1, dc, base_values(s, options, w), 0, d_inner);
  times_blocks_take<Exec, T>(s.exec, s.gemm, d_inner, Op::transpose, blocks.in(), w.perm_in, add, first, dx);
}

template <class Exec, class T>
void poet_backward_rotations(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                             Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<const T, Exec> kept,
                             Matrix<const T, Exec> d_inner, bool accumulate, Vector<Acc<T>, Exec> d_rotation_in,
                             Vector<Acc<T>, Exec> d_rotation_out) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  const PoetBlocks<Exec, A> d = take_blocks<A>(s, options, w);
  poet_backward_blocks<Exec, T>(s, options, w, dy, x, kept, d_inner, false, d);
  rotations_from_blocks<Exec, A, T>(s, options, w, d, accumulate, {d_rotation_in, d_rotation_out});
}

template <class Exec, class T>
void poet_backward_blocks(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                          Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<const T, Exec> kept,
                          Matrix<const T, Exec> d_inner, bool accumulate, const PoetBlocks<Exec, Acc<T>>& d) {
  for_sides<Exec, T>(s, options, w, {dy, x, kept, d_inner}, [&](const auto& left, const auto& right, bool output) {
    diagonal_blocks<Exec, T>(s.gemm, left, right, accumulate, output ? d.out() : d.in());
  });
}

template <class Exec, class T>
void poet_rotations_from_blocks(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                                const PoetBlocks<Exec, Acc<T>>& d, Vector<Acc<T>, Exec> d_rotation_in,
                                Vector<Acc<T>, Exec> d_rotation_out) {
  rotations_from_blocks<Exec, Acc<T>, T>(s, options, w, d, false, {d_rotation_in, d_rotation_out});
}

template <class Exec, class T>
void poet_effective(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                    Matrix<Acc<T>, Exec> out) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  const auto rows = inverse_of(s, w.perm_out), cols = inverse_of(s, w.perm_in);
  const BaseRows<Exec, T> base{base_values(s, options, w)};
  for_rotated_rows<Exec, T>(s, options, w, base, [&](const Matrix<A, Exec>& tile, std::size_t first) {
    put_elements<Exec, A, A>(s.exec, tile, part_of<Exec>(rows, first, tile.extent(0)), cols, out);
  });
}

template <class Exec, class T>
void poet_assign(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                 Matrix<const Acc<T>, Exec> from) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  const PutBase<Exec, T> base(s, options, w);
  base.put(from, w.perm_out, w.perm_in);
  base.finish();
  set_zero<Exec, A>(s.exec, w.rotation_in);
  set_zero<Exec, A>(s.exec, w.rotation_out);
}

template <class Exec, class T>
void poet_merge(const ProductSpace<Exec>& s, const PoetOptions& options, const PoetWeight<Exec, T>& w,
                const std::function<void()>& draw) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  const auto rows = inverse_of(s, w.perm_out), cols = inverse_of(s, w.perm_in);
  // Codes are read while sums are put elsewhere; values are written as they come.
  const BaseRows<Exec, T> old{copy_of(s, w.base.values), copy_of(s, w.base.residuals), w.base.coded};
  s.exec.fence("permutation");  // the old permutations have been read
  draw();
  follow_index<Exec>(s.exec, w.perm_out, rows);
  follow_index<Exec>(s.exec, w.perm_in, cols);
  const PutBase<Exec, T> base(s, options, w);
  for_rotated_rows<Exec, T>(s, options, w, old, [&](const Matrix<A, Exec>& tile, std::size_t first) {
    base.put(tile, part_of<Exec>(rows, first, tile.extent(0)), cols);
  });
  base.finish();
  set_zero<Exec, A>(s.exec, w.rotation_in);
  set_zero<Exec, A>(s.exec, w.rotation_out);
}

#define SESTINA_POET(Exec, T)                                                                                          \
  template void poet_forward<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,       \
                                      Matrix<const T, Exec>, Matrix<T, Exec>, Matrix<T, Exec>);                        \
  template void poet_backward_input<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&,                            \
                                             const PoetWeight<Exec, T>&, Matrix<const T, Exec>, bool, Matrix<T, Exec>, \
                                             Matrix<T, Exec>);                                                         \
  template void poet_backward_rotations<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&,                        \
                                                 const PoetWeight<Exec, T>&, Matrix<const T, Exec>,                    \
                                                 Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<const T, Exec>,  \
                                                 bool, Vector<Acc<T>, Exec>, Vector<Acc<T>, Exec>);                    \
  template void poet_backward_blocks<Exec, T>(                                                                         \
      const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&, Matrix<const T, Exec>,                \
      Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<const T, Exec>, bool, const PoetBlocks<Exec, Acc<T>>&);     \
  template void poet_rotations_from_blocks<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&,                     \
                                                    const PoetWeight<Exec, T>&, const PoetBlocks<Exec, Acc<T>>&,       \
                                                    Vector<Acc<T>, Exec>, Vector<Acc<T>, Exec>);                       \
  template void poet_effective<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,     \
                                        Matrix<Acc<T>, Exec>);                                                         \
  template void poet_assign<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,        \
                                     Matrix<const Acc<T>, Exec>);                                                      \
  template void poet_merge<Exec, T>(const ProductSpace<Exec>&, const PoetOptions&, const PoetWeight<Exec, T>&,         \
                                    const std::function<void()>&);
SESTINA_INSTANTIATE(SESTINA_POET)
SESTINA_POET(Serial, float)  // replay of golden files

}  // namespace sestina
