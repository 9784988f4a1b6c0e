#include "kernels/model/expert_rows.hpp"

#include "kernels/blas/math.hpp"
#include "kernels/blas/row_elements.hpp"

namespace sestina {

template <class Exec, class T>
void gather_tokens(const Exec& exec, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> token,
                   Matrix<T, Exec> rows) {
  const int d = static_cast<int>(x.extent(1));
  for_rows(
      "gather_tokens", exec, rows.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T* in = row_of(x, token(row));
        T* out = row_of(rows, row);
        each_element(
            lane, d, [](const T& a, T& to) { to = a; }, in, Written(out));
      });
}

template <class Exec, class A>
void sort_choices(const Exec& exec, Matrix<const A, Exec> values, Matrix<const std::int32_t, Exec> place,
                  Vector<A, Exec> sorted) {
  const int k = static_cast<int>(place.extent(1));
  Kokkos::parallel_for(
      "sort_choices", Kokkos::RangePolicy<Exec>(exec, 0, place.extent(0)), KOKKOS_LAMBDA(const std::int64_t row) {
        for (int j = 0; j < k; ++j) sorted(place(row, j)) = values(row, j);
      });
}

template <class Exec, class T>
void combine_rows(const Exec& exec, Matrix<const T, Exec> rows, Matrix<const std::int32_t, Exec> place,
                  Matrix<const Acc<T>, Exec> weight, bool add, Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int d = static_cast<int>(y.extent(1)), k = static_cast<int>(place.extent(1));
  const bool weighted = weight.size() > 0;
  for_rows(
      "combine_rows", exec, y.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const std::int32_t* at = row_of(place, row);
        T* out = row_of(y, row);
        each(lane, d, [&](int j) {
          A sum = add ? A(out[j]) : A(0);
          for (int i = 0; i < k; ++i) {
            const A value = A(rows(at[i], j));
            sum += weighted ? weight(row, i) * value : value;
          }
          out[j] = T(sum);
        });
      });
}

template <class Exec, class T>
void weighted_swiglu_backward(const Exec& exec, Matrix<T, Exec> d_inner, Matrix<T, Exec> gate_up,
                              Vector<Acc<T>, Exec> weight) {
  using A = Acc<T>;
  const int width = static_cast<int>(d_inner.extent(1));
  for_rows(
      "expert_back", exec, d_inner.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        T *gate = row_of(gate_up, row), *up = gate + width, *d = row_of(d_inner, row);
        const A w = weight(row);
        const T *a = gate, *b = up, *d_y = d;
        const A d_weight = sum_each<A>(
            lane, width,
            [](const T& x, const T& u, const T& dy) {
              const A g = A(x);
              return A(dy) * g * sigmoid(g) * A(u);
            },
            a, b, d_y);
        sync(lane);
        each_element(
            lane, width,
            [&](T& x, T& y, T& dy) {
              const A g = A(x), u = A(y), s = sigmoid(g), silu = g * s, wd = w * A(dy);
              x = T(wd * u * (s + silu * (A(1) - s)));
              y = T(wd * silu);
              dy = T(w * silu * u);
            },
            gate, up, d);
        if (is_first(lane)) weight(row) = d_weight;
      });
}

#define SESTINA_SORT_CHOICES(Exec)                                                                                    \
  template void sort_choices<Exec, float>(const Exec&, Matrix<const float, Exec>, Matrix<const std::int32_t, Exec>,   \
                                          Vector<float, Exec>);                                                       \
  template void sort_choices<Exec, double>(const Exec&, Matrix<const double, Exec>, Matrix<const std::int32_t, Exec>, \
                                           Vector<double, Exec>);
SESTINA_INSTANTIATE_SPACES(SESTINA_SORT_CHOICES)
#define SESTINA_EXPERT_ROWS(Exec, T)                                                                         \
  template void gather_tokens<Exec, T>(const Exec&, Matrix<const T, Exec>, Vector<const std::int32_t, Exec>, \
                                       Matrix<T, Exec>);                                                     \
  template void combine_rows<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const std::int32_t, Exec>,  \
                                      Matrix<const Acc<T>, Exec>, bool, Matrix<T, Exec>);                    \
  template void weighted_swiglu_backward<Exec, T>(const Exec&, Matrix<T, Exec>, Matrix<T, Exec>, Vector<Acc<T>, Exec>);
SESTINA_INSTANTIATE(SESTINA_EXPERT_ROWS)

}  // namespace sestina
