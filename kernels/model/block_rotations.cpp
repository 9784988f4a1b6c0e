#include "kernels/model/block_rotations.hpp"

#include <algorithm>

#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/device/block_series.hpp"

namespace sestina {

namespace {

void require_packed(std::size_t n, std::size_t b, std::size_t packed) {
  SESTINA_REQUIRE(b > 1 && n % b == 0 && packed == n / b * skew_elements(b), "{} numbers for blocks ({}, {})", packed,
                  n, b);
}

// Starts the series: q becomes 2 q + k q2; sum = I + 2 q + 2 q2.
template <class Exec, class A>
void start_series(const Exec& exec, A k, Matrix<const A, Exec> q2, Matrix<A, Exec> q, Matrix<A, Exec> sum) {
  const std::size_t b = q.extent(1);
  for_elements(
      "cayley_sum", exec, q.extent(0), b, KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const std::size_t diagonal = i % b;
        for (std::size_t j = begin; j < end; ++j) {
          const A x = 2 * q(i, j), y = q2(i, j);
          q(i, j) = x + k * y;
          sum(i, j) = (j == diagonal ? A(1) : A(0)) + x + 2 * y;
        }
      });
}

// Starts the gradient from n and d_G: left = 2 d_G + k n, d_G becomes 2 (d_G + n), q becomes k q2 - 2 q.
template <class Exec, class A>
void start_gradient(const Exec& exec, A k, Matrix<const A, Exec> n, Matrix<const A, Exec> q2, Matrix<A, Exec> q,
                    Matrix<A, Exec> d_g, Matrix<A, Exec> left) {
  for_elements(
      "cayley_back", exec, q.extent(0), q.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t j = begin; j < end; ++j) {
          const A d = d_g(i, j), sum = n(i, j);
          left(i, j) = 2 * d + k * sum;
          d_g(i, j) = 2 * (d + sum);
          q(i, j) = k * q2(i, j) - 2 * q(i, j);
        }
      });
}

// Sums the series of any number of blocks (n, b); all matrices but the last are scratch.
template <class Exec, class A>
void series(const Exec& exec, Gemm<Exec>& gemm, A k, const PackedBlocks<Exec, const A>& theta, Matrix<A, Exec> q,
            Matrix<A, Exec> q2, Matrix<A, Exec> sum) {
  unpack_skew<Exec, A>(exec, theta, q);
  block_pairs<Exec, A>(gemm, 1, q, q, 0, q2);
  start_series<Exec, A>(exec, k, q2, q, sum);
  block_pairs<Exec, A>(gemm, 1, q2, q, 1, sum);  // 2 Q^3 + k Q^4
}

// Scratch for the gradient of any number of blocks (n, b); d_g is used up.
template <class Exec, class A>
struct GradientScratch {
  Matrix<A, Exec> q, q2, n, left;
};
template <class Exec, class A>
void series_gradient(const Exec& exec, Gemm<Exec>& gemm, A k, const PackedBlocks<Exec, const A>& theta,
                     const GradientScratch<Exec, A>& s, Matrix<A, Exec> d_g, bool accumulate,
                     const PackedBlocks<Exec, A>& d_theta) {
  unpack_skew<Exec, A>(exec, theta, s.q);
  block_pairs<Exec, A>(gemm, 1, s.q, s.q, 0, s.q2);
  // Here and below Q^T = -Q and Q2^T = Q2.
  block_pairs<Exec, A>(gemm, -1, d_g, s.q, 0, s.n);
  block_pairs<Exec, A>(gemm, -1, s.q, d_g, 1, s.n);
  start_gradient<Exec, A>(exec, k, s.n, s.q2, s.q, d_g, s.left);
  block_pairs<Exec, A>(gemm, 1, s.left, s.q2, 1, d_g);
  block_pairs<Exec, A>(gemm, 1, s.q, s.n, 1, d_g);
  pack_skew<Exec, A>(exec, d_g, accumulate, d_theta);
}

// Blocks taken separately by the lanes of a host: what a lane computes stays in its cache from theta
// to G (three blocks of 256 in float are 768 kB).
template <class Exec, class A>
class Blocks {
 public:
  Blocks(std::size_t n, std::size_t b) : n_(n), b_(b) {}
  bool side_by_side(const Gemm<Exec>& gemm) const { return Gemm<Exec>::fills(n_ / b_, gemm.lanes()); }
  std::size_t scratch_rows(const Gemm<Exec>& gemm) const { return std::min(n_ / b_, gemm.lanes()) * b_; }
  template <class E>
  Matrix<E, Serial> of(const Matrix<E, Exec>& x, std::size_t block) const {
    return Matrix<E, Serial>(x.data() + block * b_ * b_, b_, b_);
  }
  template <class E>
  Vector<E, Serial> of(const PackedBlocks<Exec, E>& theta, std::size_t block) const {
    return Vector<E, Serial>(theta.block(block, skew_elements(b_)), skew_elements(b_));
  }

 private:
  std::size_t n_, b_;
};

// Sums the series of all blocks, either in sweeps over the memory of all or block by block.
template <class Exec, class A>
void all_series(const Exec& exec, Gemm<Exec>& gemm, Workspace<Exec>& workspace, A k,
                const PackedBlocks<Exec, const A>& theta, Matrix<A, Exec> g) {
  const std::size_t n = g.extent(0), b = g.extent(1);
  const auto take = [&](std::size_t rows) { return workspace.template take<A>(rows, b); };
  if constexpr (is_host<Exec>) {
    const Blocks<Exec, A> blocks(n, b);
    if (blocks.side_by_side(gemm)) {
      const std::size_t rows = blocks.scratch_rows(gemm);
      const Matrix<A, Exec> q = take(rows), q2 = take(rows);
      gemm.side_by_side(n / b, [&](Gemm<Serial>& products, std::size_t block, std::size_t lane) {
        series<Serial, A>(products.exec(), products, k, blocks.of(theta, block), blocks.of(q, lane),
                          blocks.of(q2, lane), blocks.of(g, block));
      });
      return;
    }
  }
  const Matrix<A, Exec> q = take(n), q2 = take(n);
  series<Exec, A>(exec, gemm, k, theta, q, q2, g);
}

}  // namespace

template <class Exec, class A>
void unpack_skew(const Exec& exec, PackedBlocks<Exec, const A> theta, Matrix<A, Exec> q) {
  const std::size_t n = q.extent(0), b = q.extent(1);
  require_packed(n, b, theta.elements());
  const std::size_t block = skew_elements(b);
  for_elements(
      "unpack_skew", exec, n, b, KOKKOS_LAMBDA(std::size_t row, std::size_t begin, std::size_t end) {
        const A* upper = theta.block(row / b, block);
        const std::size_t i = row % b;
        for (std::size_t j = begin; j < Kokkos::min(end, i); ++j) q(row, j) = -upper[packed_place(j, i, b)];
        if (begin <= i && i < end) q(row, i) = 0;
        for (std::size_t j = Kokkos::max(begin, i + 1); j < end; ++j) q(row, j) = upper[packed_place(i, j, b)];
      });
}

template <class Exec, class A>
void pack_skew(const Exec& exec, Matrix<const A, Exec> d, bool accumulate, PackedBlocks<Exec, A> theta) {
  const std::size_t n = d.extent(0), b = d.extent(1);
  require_packed(n, b, theta.elements());
  const std::size_t block = skew_elements(b);
  for_elements(
      "pack_skew", exec, n, b, KOKKOS_LAMBDA(std::size_t row, std::size_t begin, std::size_t end) {
        A* upper = theta.block(row / b, block);
        const std::size_t i = row % b, first = row - i;
        for (std::size_t j = Kokkos::max(begin, i + 1); j < end; ++j) {
          A& to = upper[packed_place(i, j, b)];
          const A value = d(row, j) - d(first + j, i);
          to = accumulate ? to + value : value;
        }
      });
}

template <class Exec, class T>
void cayley_neumann(const Exec& exec, Gemm<Exec>& gemm, Workspace<Exec>& workspace, double k,
                    PackedBlocks<Exec, const Acc<T>> theta, Matrix<T, Exec> g) {
  using A = Acc<T>;
  const std::size_t n = g.extent(0), b = g.extent(1);
  require_packed(n, b, theta.elements());
  if constexpr (!is_host<Exec>)
    if (b <= block_series::largest) return block_series::forward<Exec, T>(exec, A(k), theta, g);
  auto frame = workspace.frame();
  if constexpr (std::is_same_v<T, A>) {
    all_series<Exec, A>(exec, gemm, workspace, A(k), theta, g);
  } else {
    const Matrix<A, Exec> sum = workspace.template take<A>(n, b);
    all_series<Exec, A>(exec, gemm, workspace, A(k), theta, sum);
    convert<Exec, A, T>(exec, Vector<const A, Exec>(sum.data(), n * b), Vector<T, Exec>(g.data(), n * b));
  }
}

template <class Exec, class A>
void cayley_neumann_backward(const Exec& exec, Gemm<Exec>& gemm, Workspace<Exec>& workspace, double k,
                             PackedBlocks<Exec, const A> theta, Matrix<A, Exec> d_g, bool accumulate,
                             PackedBlocks<Exec, A> d_theta) {
  const std::size_t n = d_g.extent(0), b = d_g.extent(1);
  require_packed(n, b, theta.elements());
  if constexpr (!is_host<Exec>)
    if (b <= block_series::largest) return block_series::backward<Exec, A>(exec, A(k), theta, d_g, accumulate, d_theta);
  auto frame = workspace.frame();
  const auto take = [&](std::size_t rows) {
    const auto piece = [&] { return workspace.template take<A>(rows, b); };
    return GradientScratch<Exec, A>{piece(), piece(), piece(), piece()};
  };
  if constexpr (is_host<Exec>) {
    const Blocks<Exec, A> blocks(n, b);
    if (blocks.side_by_side(gemm)) {
      const GradientScratch<Exec, A> s = take(blocks.scratch_rows(gemm));
      gemm.side_by_side(n / b, [&](Gemm<Serial>& products, std::size_t block, std::size_t lane) {
        const GradientScratch<Serial, A> own{blocks.of(s.q, lane), blocks.of(s.q2, lane), blocks.of(s.n, lane),
                                             blocks.of(s.left, lane)};
        series_gradient<Serial, A>(products.exec(), products, A(k), blocks.of(theta, block), own, blocks.of(d_g, block),
                                   accumulate, blocks.of(d_theta, block));
      });
      return;
    }
  }
  series_gradient<Exec, A>(exec, gemm, A(k), theta, take(n), d_g, accumulate, d_theta);
}

#define SESTINA_SKEW(Exec, A)                                                                        \
  template void unpack_skew<Exec, A>(const Exec&, PackedBlocks<Exec, const A>, Matrix<A, Exec>);     \
  template void pack_skew<Exec, A>(const Exec&, Matrix<const A, Exec>, bool, PackedBlocks<Exec, A>); \
  template void cayley_neumann_backward<Exec, A>(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double, \
                                                 PackedBlocks<Exec, const A>, Matrix<A, Exec>, bool, \
                                                 PackedBlocks<Exec, A>);
#define SESTINA_CAYLEY(Exec, T)                                                             \
  template void cayley_neumann<Exec, T>(const Exec&, Gemm<Exec>&, Workspace<Exec>&, double, \
                                        PackedBlocks<Exec, const Acc<T>>, Matrix<T, Exec>);
#define SESTINA_ROTATIONS(Exec) \
  SESTINA_SKEW(Exec, float)     \
  SESTINA_SKEW(Exec, double)    \
  SESTINA_CAYLEY(Exec, float)   \
  SESTINA_CAYLEY(Exec, double)  \
  SESTINA_CAYLEY(Exec, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATIONS)

}  // namespace sestina
