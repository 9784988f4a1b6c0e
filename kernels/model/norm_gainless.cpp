// RMSNorm without a weight: nothing is summed over rows, so that each row is by itself both ways.
#include "kernels/blas/row_moments.hpp"
#include "kernels/blas/rows.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {

template <class Exec, class T>
void gainless_rms_norm(const Exec& exec, Matrix<const T, Exec> x, Matrix<const T, Exec> branch, std::int64_t width,
                       double eps, Matrix<T, Exec> sum, Matrix<T, Exec> y, Vector<Acc<T>, Exec> inv_rms) {
  using A = Acc<T>;
  const int d = static_cast<int>(width);
  if (d == 0) return;
  const int groups = static_cast<int>(x.extent(1)) / d;
  const bool adds = branch.size() > 0;
  const A epsilon = static_cast<A>(eps);
  for_rows(
      "gainless_rms_norm", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        for (int g = 0; g < groups; ++g) {
          const T* in = row_of(x, row) + g * d;
          T* out = row_of(y, row) + g * d;
          if (adds) {
            const T* right = row_of(branch, row) + g * d;
            T* total = row_of(sum, row) + g * d;
            each(lane, d, [&](int j) { total[j] = T(A(in[j]) + A(right[j])); });
            sync(lane);
            in = total;
          }
          const A squares = squares_of<A>(lane, in, d);
          const A inverse = A(1) / Kokkos::sqrt(squares / A(d) + epsilon);
          each(lane, d, [&](int j) { out[j] = T(A(in[j]) * inverse); });
          if (is_first(lane)) inv_rms(row * groups + g) = inverse;
        }
      });
}

template <class Exec, class T>
void gainless_rms_norm_backward(const Exec& exec, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, std::int64_t width,
                                Vector<const Acc<T>, Exec> inv_rms, Matrix<const T, Exec> residual,
                                Matrix<T, Exec> dx) {
  using A = Acc<T>;
  const int d = static_cast<int>(width);
  if (d == 0) return;
  const int groups = static_cast<int>(x.extent(1)) / d;
  const bool bypass = residual.size() > 0;
  for_rows(
      "gainless_rms_back", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        for (int g = 0; g < groups; ++g) {
          const T *in = row_of(x, row) + g * d, *grad = row_of(dy, row) + g * d;
          T* out = row_of(dx, row) + g * d;
          const A inverse = inv_rms(row * groups + g);
          const A along = sum_over<A>(lane, d, [&](int j) { return A(grad[j]) * A(in[j]); });
          const A slope = along * inverse * inverse / A(d);
          const T* around = bypass ? row_of(residual, row) + g * d : grad;
          const A keep = bypass ? A(1) : A(0);
          each(lane, d, [&](int j) { out[j] = T(keep * A(around[j]) + (A(grad[j]) - slope * A(in[j])) * inverse); });
        }
      });
}

#define SESTINA_GAINLESS_NORM(Exec, T)                                                                               \
  template void gainless_rms_norm<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>, std::int64_t,  \
                                           double, Matrix<T, Exec>, Matrix<T, Exec>, Vector<Acc<T>, Exec>);          \
  template void gainless_rms_norm_backward<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>,       \
                                                    std::int64_t, Vector<const Acc<T>, Exec>, Matrix<const T, Exec>, \
                                                    Matrix<T, Exec>);
SESTINA_INSTANTIATE(SESTINA_GAINLESS_NORM)

}  // namespace sestina
