#include "core/gradient_cosine.hpp"

#include <cmath>

#include "kernels/blas/chunk_sums.hpp"
#include "kernels/blas/reduce.hpp"

namespace sestina {
namespace {

constexpr std::size_t cosine_piece = 1 << 16;  // elements of one sum

template <class Exec, class A>
static void products(const Exec& exec, Vector<const A, Exec> x, Vector<const A, Exec> y, Vector<double, Exec> sums) {
  const A *a = x.data(), *b = y.data();
  sum_pieces<Exec>(
      "products", exec, x.extent(0), cosine_piece, sums, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) {
          return static_cast<double>(a[begin + i]) * static_cast<double>(b[begin + i]);
        });
      });
}

}  // namespace

template <class Exec, class T>
GradientCosine<Exec, T>::GradientCosine(const Arena<Exec, T>& arena)
    : gradients_(arena.gradients()),
      kept_("sestina::fresh_gradient", gradients_.size()),
      sums_("sestina::drift", 3 * ((gradients_.size() + cosine_piece - 1) / cosine_piece)) {}

template <class Exec, class T>
void GradientCosine<Exec, T>::keep(const Exec& exec) {
  convert<Exec, Acc<T>, Acc<T>>(exec, gradients_, kept_);
}

template <class Exec, class T>
double GradientCosine<Exec, T>::with_kept(const Exec& exec) {
  const Vector<const Acc<T>, Exec> now = gradients_, then = kept_;
  const std::size_t n = sums_.size() / 3;
  products<Exec, Acc<T>>(exec, now, then, sums_.at(0, n));
  products<Exec, Acc<T>>(exec, now, now, sums_.at(n, n));
  products<Exec, Acc<T>>(exec, then, then, sums_.at(2 * n, n));
  sums_.fetch(exec, "cosine");
  double sum[3] = {};
  for (std::size_t i = 0; i < sums_.size(); ++i) sum[i / n] += sums_[i];
  return sum[0] / std::sqrt(sum[1] * sum[2]);
}

#define SESTINA_COSINE(Exec, T) template class GradientCosine<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_COSINE)

}  // namespace sestina
