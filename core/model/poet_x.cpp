#include "core/model/poet_x.hpp"

#include "kernels/blas/block_product.hpp"
#include "kernels/blas/elementwise.hpp"
#include "kernels/blas/reduce.hpp"
#include "kernels/model/cayley_neumann.hpp"
#include "kernels/model/group_quantise.hpp"
#include "kernels/model/index_map.hpp"
#include "kernels/model/permuted_blocks.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
Vector<T, Exec> flat(const Matrix<T, Exec>& m) {
  return Vector<T, Exec>(m.data(), m.size());
}

// Both ends of a Linear in scratch of the caller's frame; a narrower one is the front of a sheet.
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

// Blocks (n, b) of one side, in scratch of the caller's frame.
template <class E, class Exec>
Matrix<E, Exec> rotation(const ProductSpace<Exec>& s, const PoetSetting& setting, std::size_t n,
                         const Vector<Acc<E>, Exec>& theta) {
  const Matrix<E, Exec> blocks = s.workspace.template take<E>(n, setting.block);
  cayley_neumann<Exec, E>(s.exec, s.gemm, s.workspace, setting.fourth, theta, blocks);
  return blocks;
}

// The base as values, in scratch of the caller's frame where codes are kept.
template <class Exec, class T>
Matrix<const T, Exec> base_values(const ProductSpace<Exec>& s, const PoetSetting& setting,
                                  const PoetWeight<Exec, T>& w) {
  if (setting.group == 0) return w.base.values;
  const Matrix<T, Exec> values = s.workspace.template take<T>(w.rows(), w.cols());
  group_dequantise<Exec, T>(s.exec, w.base.codes, w.base.scales, w.base.zeros, setting.group, flat<Exec, T>(values));
  return values;
}

// c (N, out) from x, by way of two sheets; c may lie in the first one.
template <class Exec, class T>
void inner_product(const ProductSpace<Exec>& s, const PoetSetting& setting, const PoetWeight<Exec, T>& w,
                   Matrix<const T, Exec> x, const Vector<T, Exec>& first, const Matrix<T, Exec>& a,
                   const Matrix<T, Exec>& c) {
  auto frame = s.workspace.frame();
  put_times_blocks<Exec, T>(s.exec, s.gemm, x, w.perm_in, Op::none, rotation<T>(s, setting, w.cols(), w.rotation_in),
                            first, a);
  s.gemm.template operator()<T, T>(Op::none, Op::transpose, 1, a, base_values(s, setting, w), 0, c);
}

}  // namespace

template <class Exec, class T>
void poet_forward(const ProductSpace<Exec>& s, const PoetSetting& setting, const PoetWeight<Exec, T>& w,
                  Matrix<const T, Exec> x, Matrix<T, Exec> kept, Matrix<T, Exec> y) {
  auto frame = s.workspace.frame();
  Sheets<Exec, T> sheets(s.workspace, x.extent(0), w);
  const Vector<T, Exec> first = sheets.sheet(), second = sheets.sheet();
  const Matrix<T, Exec> c = kept.size() > 0 ? kept : sheets.of(first, w.rows());
  inner_product<Exec, T>(s, setting, w, x, first, sheets.of(second, w.cols()), c);
  times_blocks_take<Exec, T>(s.exec, s.gemm, c, Op::none, rotation<T>(s, setting, w.rows(), w.rotation_out), w.perm_out,
                             false, second, y);
}

template <class Exec, class T>
void poet_backward_input(const ProductSpace<Exec>& s, const PoetSetting& setting, const PoetWeight<Exec, T>& w,
                         Matrix<const T, Exec> dy, bool add, Matrix<T, Exec> d_inner, Matrix<T, Exec> dx) {
  auto frame = s.workspace.frame();
  Sheets<Exec, T> sheets(s.workspace, dy.extent(0), w);
  const Vector<T, Exec> first = sheets.sheet(), second = sheets.sheet();
  const Matrix<T, Exec> dc = sheets.of(second, w.rows());
  put_times_blocks<Exec, T>(s.exec, s.gemm, dy, w.perm_out, Op::transpose,
                            rotation<T>(s, setting, w.rows(), w.rotation_out), first, dc);
  s.gemm.template operator()<T, T>(Op::none, Op::none, 1, dc, base_values(s, setting, w), 0, d_inner);
  times_blocks_take<Exec, T>(s.exec, s.gemm, d_inner, Op::transpose, rotation<T>(s, setting, w.cols(), w.rotation_in),
                             w.perm_in, add, first, dx);
}

template <class Exec, class T>
void poet_backward_rotations(const ProductSpace<Exec>& s, const PoetSetting& setting, const PoetWeight<Exec, T>& w,
                             Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<const T, Exec> kept,
                             Matrix<const T, Exec> d_inner, bool accumulate, Vector<Acc<T>, Exec> d_rotation_in,
                             Vector<Acc<T>, Exec> d_rotation_out) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  Sheets<Exec, T> sheets(s.workspace, dy.extent(0), w);
  const Vector<T, Exec> first = sheets.sheet(), second = sheets.sheet();
  Matrix<const T, Exec> c = kept;
  if (kept.size() == 0) {
    const Matrix<T, Exec> again = sheets.of(first, w.rows());
    inner_product<Exec, T>(s, setting, w, x, first, sheets.of(second, w.cols()), again);
    c = again;
  }
  const auto gradient = [&](const Matrix<const T, Exec>& left, const Matrix<const T, Exec>& right,
                            const Vector<A, Exec>& theta, const Vector<A, Exec>& d_theta) {
    auto inner = s.workspace.frame();
    const Matrix<A, Exec> d = s.workspace.template take<A>(left.extent(1), setting.block);
    diagonal_blocks<Exec, T>(s.gemm, left, right, d);
    cayley_neumann_backward<Exec, A>(s.exec, s.gemm, s.workspace, setting.fourth, theta, d, accumulate, d_theta);
  };
  const Matrix<T, Exec> g = sheets.of(second, w.rows());
  put_columns<Exec, T>(s.exec, dy, w.perm_out, g);
  gradient(c, g, w.rotation_out, d_rotation_out);
  const Matrix<T, Exec> permuted = sheets.of(first, w.cols());
  put_columns<Exec, T>(s.exec, x, w.perm_in, permuted);
  gradient(permuted, d_inner, w.rotation_in, d_rotation_in);
}

template <class Exec, class T>
void poet_effective(const ProductSpace<Exec>& s, const PoetSetting& setting, const PoetWeight<Exec, T>& w,
                    Matrix<Acc<T>, Exec> out) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  const Matrix<A, Exec> other = s.workspace.template take<A>(w.rows(), w.cols());
  {
    auto inner = s.workspace.frame();
    const Matrix<const T, Exec> base = base_values(s, setting, w);
    convert<Exec, T, A>(s.exec, flat<Exec, const T>(base), flat<Exec, A>(other));
    times_blocks<Exec, A>(s.gemm, other, Op::transpose, rotation<A>(s, setting, w.cols(), w.rotation_in), out);
    blocks_times<Exec, A>(s.gemm, Op::transpose, rotation<A>(s, setting, w.rows(), w.rotation_out), out, other);
  }
  take_elements<Exec, A, A>(s.exec, other, w.perm_out, w.perm_in, out);
}

template <class Exec, class T>
void poet_assign(const ProductSpace<Exec>& s, const PoetSetting& setting, const PoetWeight<Exec, T>& w,
                 Matrix<const Acc<T>, Exec> from) {
  using A = Acc<T>;
  auto frame = s.workspace.frame();
  if (setting.group == 0) {
    put_elements<Exec, A, T>(s.exec, from, w.perm_out, w.perm_in, w.base.values);
  } else {
    const Matrix<A, Exec> held = s.workspace.template take<A>(w.rows(), w.cols());
    put_elements<Exec, A, A>(s.exec, from, w.perm_out, w.perm_in, held);
    group_quantise<Exec, A>(s.exec, flat<Exec, A>(held), setting.group, setting.zero_in_range, w.base.codes,
                            w.base.scales, w.base.zeros);
  }
  set_zero<Exec, A>(s.exec, w.rotation_in);
  set_zero<Exec, A>(s.exec, w.rotation_out);
}

#define SESTINA_POET(Exec, T)                                                                                          \
  template void poet_forward<Exec, T>(const ProductSpace<Exec>&, const PoetSetting&, const PoetWeight<Exec, T>&,       \
                                      Matrix<const T, Exec>, Matrix<T, Exec>, Matrix<T, Exec>);                        \
  template void poet_backward_input<Exec, T>(const ProductSpace<Exec>&, const PoetSetting&,                            \
                                             const PoetWeight<Exec, T>&, Matrix<const T, Exec>, bool, Matrix<T, Exec>, \
                                             Matrix<T, Exec>);                                                         \
  template void poet_backward_rotations<Exec, T>(const ProductSpace<Exec>&, const PoetSetting&,                        \
                                                 const PoetWeight<Exec, T>&, Matrix<const T, Exec>,                    \
                                                 Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<const T, Exec>,  \
                                                 bool, Vector<Acc<T>, Exec>, Vector<Acc<T>, Exec>);                    \
  template void poet_effective<Exec, T>(const ProductSpace<Exec>&, const PoetSetting&, const PoetWeight<Exec, T>&,     \
                                        Matrix<Acc<T>, Exec>);                                                         \
  template void poet_assign<Exec, T>(const ProductSpace<Exec>&, const PoetSetting&, const PoetWeight<Exec, T>&,        \
                                     Matrix<const Acc<T>, Exec>);
SESTINA_INSTANTIATE(SESTINA_POET)
SESTINA_POET(Serial, float)  // replay of golden files

}  // namespace sestina
