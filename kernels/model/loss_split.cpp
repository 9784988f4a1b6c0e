#include "kernels/model/loss.hpp"

#include "kernels/blas/math.hpp"
#include "kernels/blas/row_elements.hpp"
#include "kernels/model/soft_cap.hpp"

namespace sestina {

template <class Exec, class T>
void row_largest(const Exec& exec, Vector<const std::int32_t, Exec> target, Matrix<const T, Exec> logits,
                 Vector<Acc<T>, Exec> largest) {
  using A = Acc<T>;
  const int columns = static_cast<int>(logits.extent(1));
  for_rows(
      "row_largest", exec, logits.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T* x = row_of(logits, row);
        const A found = max_over<A>(lane, target(row) < 0 ? 0 : columns, [&](int j) { return A(x[j]); });
        if (is_first(lane)) largest(row) = found;
      });
}

template <class Exec, class T>
void row_exponentials(const Exec& exec, Vector<const std::int32_t, Exec> target, std::int32_t first,
                      Vector<const Acc<T>, Exec> largest, Matrix<const T, Exec> logits, Vector<Acc<T>, Exec> sum,
                      Vector<Acc<T>, Exec> picked) {
  using A = Acc<T>;
  const int columns = static_cast<int>(logits.extent(1));
  for_rows(
      "row_exps", exec, logits.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T* x = row_of(logits, row);
        const A top = largest(row);
        // 0 * x is added to each term, which -infinity would otherwise leave unseen.
        const A part = sum_each<A>(
            lane, target(row) < 0 ? 0 : columns,
            [&](const T& z) { return Kokkos::fma(A(0), A(z), exp_below_89(A(z) - top)); }, x);
        const int wanted = target(row) - first;
        const bool here = target(row) >= 0 && 0 <= wanted && wanted < columns;
        if (is_first(lane)) {
          sum(row) = part;
          picked(row) = here ? A(x[wanted]) - top : A(0);
        }
      });
}

template <class Exec, class T>
void split_cross_entropy(const Exec& exec, Vector<const std::int32_t, Exec> target, std::int32_t first,
                         Vector<const Acc<T>, Exec> largest, Vector<const Acc<T>, Exec> sum,
                         Vector<const Acc<T>, Exec> picked, Acc<T> gradient_scale, bool want_gradient,
                         Matrix<T, Exec> logits, Vector<Acc<T>, Exec> loss, SoftCap cap) {
  using A = Acc<T>;
  const CapSlope<A> slope(cap);
  const int columns = static_cast<int>(logits.extent(1));
  for_rows(
      "split_entropy", exec, logits.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        T* x = row_of(logits, row);
        const bool counts = target(row) >= 0;
        if (is_first(lane)) loss(row) = counts ? Kokkos::log(sum(row)) - picked(row) : A(0);
        if (!want_gradient) return;
        if (!counts) {
          each(lane, columns, [&](int j) { x[j] = T(A(0)); });
          return;
        }
        const A top = largest(row), scale = gradient_scale / sum(row);
        if (slope.bounded()) {
          const int target_column = target(row) - first;
          each_element(
              lane, columns, [&](T& z) { z = T(exp_below_89(A(z) - top) * scale * slope(A(z))); }, x);
          sync(lane);
          if (is_first(lane) && 0 <= target_column && target_column < columns)
            x[target_column] = T((exp_below_89(picked(row)) * scale - gradient_scale) * slope(picked(row) + top));
          return;
        }
        each_element(
            lane, columns, [&](T& z) { z = T(exp_below_89(A(z) - top) * scale); }, x);
        sync(lane);
        const int wanted = target(row) - first;
        if (is_first(lane) && 0 <= wanted && wanted < columns)
          x[wanted] = T(exp_below_89(picked(row)) * scale - gradient_scale);
      });
}

#define SESTINA_SPLIT_LOSS(Exec, T)                                                                                \
  template void row_largest<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, Matrix<const T, Exec>,         \
                                     Vector<Acc<T>, Exec>);                                                        \
  template void row_exponentials<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, std::int32_t,             \
                                          Vector<const Acc<T>, Exec>, Matrix<const T, Exec>, Vector<Acc<T>, Exec>, \
                                          Vector<Acc<T>, Exec>);                                                   \
  template void split_cross_entropy<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, std::int32_t,          \
                                             Vector<const Acc<T>, Exec>, Vector<const Acc<T>, Exec>,               \
                                             Vector<const Acc<T>, Exec>, Acc<T>, bool, Matrix<T, Exec>,            \
                                             Vector<Acc<T>, Exec>, SoftCap);
SESTINA_INSTANTIATE(SESTINA_SPLIT_LOSS)

}  // namespace sestina
