// RMSNorm without a weight: nothing is summed over rows, so that each row is by itself both ways.
#include "kernels/blas/row_elements.hpp"
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
            each_element(
                lane, d, [](const T& a, const T& b, T& to) { to = T(A(a) + A(b)); }, in, right, Written(total));
            sync(lane);
            in = total;
          }
          const A squares = squares_of<A>(lane, in, d);
          const A inverse = A(1) / Kokkos::sqrt(squares / A(d) + epsilon);
          each_element(
              lane, d, [&](const T& a, T& to) { to = T(A(a) * inverse); }, in, Written(out));
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
          const A along = sum_each<A>(
              lane, d, [](const T& g_y, const T& a) { return A(g_y) * A(a); }, grad, in);
          const A slope = along * inverse * inverse / A(d);
          const T* around = bypass ? row_of(residual, row) + g * d : grad;
          const A keep = bypass ? A(1) : A(0);
          each_element(
              lane, d,
              [&](const T& g_y, const T& a, const T& past, T& to) {
                to = T(keep * A(past) + (A(g_y) - slope * A(a)) * inverse);
              },
              grad, in, around, Written(out));
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
