#include "kernels/model/norm.hpp"

#include "kernels/blas/row_moments.hpp"
#include "kernels/blas/rows.hpp"

namespace sestina {
template <class Exec, class T>
void rms_norm(const Exec& exec, Matrix<const T, Exec> x, Vector<const Acc<T>, Exec> weight, double eps,
              Matrix<T, Exec> y, Vector<Acc<T>, Exec> inv_rms) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  if (d == 0) return;
  const int groups = static_cast<int>(x.extent(1)) / d;
  const A epsilon = static_cast<A>(eps);
  for_rows(
      "rms_norm", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const A* w = weight.data();
        for (int g = 0; g < groups; ++g) {
          const T* in = row_of(x, row) + g * d;
          T* out = row_of(y, row) + g * d;
          const A squares = squares_of<A>(lane, in, d);
          const A inverse = A(1) / Kokkos::sqrt(squares / A(d) + epsilon);
          each(lane, d, [&](int j) { out[j] = T(A(in[j]) * inverse * w[j]); });
          if (is_first(lane)) inv_rms(row * groups + g) = inverse;
        }
      });
}

template <class Exec, class T>
void add_rms_norm(const Exec& exec, Matrix<const T, Exec> x, Matrix<const T, Exec> branch,
                  Vector<const Acc<T>, Exec> weight, double eps, Matrix<T, Exec> sum, Matrix<T, Exec> y,
                  Vector<Acc<T>, Exec> inv_rms) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  const A epsilon = static_cast<A>(eps);
  for_rows(
      "add_rms_norm", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const A* w = weight.data();
        const T *left = row_of(x, row), *right = row_of(branch, row);
        T *total = row_of(sum, row), *out = row_of(y, row);
        each(lane, d, [&](int j) { total[j] = T(A(left[j]) + A(right[j])); });
        sync(lane);
        const A squares = squares_of<A>(lane, total, d);
        const A inverse = A(1) / Kokkos::sqrt(squares / A(d) + epsilon);
        each(lane, d, [&](int j) { out[j] = T(A(total[j]) * inverse * w[j]); });
        if (is_first(lane)) inv_rms(row) = inverse;
      });
}

template <class Exec, class T>
void rms_norm_backward(const Exec& exec, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                       Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> inv_rms,
                       Matrix<const T, Exec> residual, Matrix<T, Exec> dx, RowTotal<Acc<T>, Exec> dweight,
                       Workspace<Exec>& workspace) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  const auto n = static_cast<std::int64_t>(x.extent(0));
  if (d == 0) return;
  const int groups = static_cast<int>(x.extent(1)) / d;
  const bool bypass = residual.size() > 0;
  auto frame = workspace.frame();
  const Matrix<A, Exec> partial = RowSumScratch<Exec, A>(workspace, x.extent(0), weight.extent(0)).partial;
  for_rows(
      "rms_norm_back", exec, row_chunks(n), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t chunk) {
        const A* w = weight.data();
        A* dw = row_of(partial, chunk);
        each(lane, d, [&](int j) { dw[j] = A(0); });
        const std::int64_t end = (chunk + 1) * row_chunk < n ? (chunk + 1) * row_chunk : n;
        for (std::int64_t row = chunk * row_chunk; row < end; ++row) {
          for (int g = 0; g < groups; ++g) {
            const T *in = row_of(x, row) + g * d, *grad = row_of(dy, row) + g * d;
            T* out = row_of(dx, row) + g * d;
            const A inverse = inv_rms(row * groups + g);
            const A along = sum_over<A>(lane, d, [&](int j) { return A(grad[j]) * w[j] * A(in[j]); });
            const A slope = along * inverse * inverse / A(d);
            if (bypass) {
              const T* around = row_of(residual, row) + g * d;
              each(lane, d, [&](int j) {
                const A scaled = A(grad[j]) * inverse;
                dw[j] += scaled * A(in[j]);
                out[j] = T(A(around[j]) + scaled * w[j] - inverse * slope * A(in[j]));
              });
            } else {
              each(lane, d, [&](int j) {
                const A scaled = A(grad[j]) * inverse;
                dw[j] += scaled * A(in[j]);
                out[j] = T(scaled * w[j] - inverse * slope * A(in[j]));
              });
            }
          }
        }
      });
  add_chunks(exec, partial, dweight);
}

template <class Exec, class T>
void add(const Exec& exec, Matrix<const T, Exec> x, Matrix<const T, Exec> branch, Matrix<T, Exec> sum) {
  using A = Acc<T>;
  const int d = static_cast<int>(x.extent(1));
  for_rows(
      "add", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T *left = row_of(x, row), *right = row_of(branch, row);
        T* total = row_of(sum, row);
        each(lane, d, [&](int j) { total[j] = T(A(left[j]) + A(right[j])); });
      });
}

template <class Exec, class T>
void add_layer_norm(const Exec& exec, Matrix<const T, Exec> x, Matrix<const T, Exec> branch,
                    Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> bias, double eps, Matrix<T, Exec> sum,
                    Matrix<T, Exec> y, Vector<Acc<T>, Exec> mean, Vector<Acc<T>, Exec> inv_std) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  if (d == 0) return;
  const bool adds = branch.size() > 0;
  const A epsilon = static_cast<A>(eps);
  for_rows(
      "add_layer_norm", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const A *w = weight.data(), *b = bias.data();
        const T* in = row_of(x, row);
        T* out = row_of(y, row);
        if (adds) {
          const T* right = row_of(branch, row);
          T* total = row_of(sum, row);
          each(lane, d, [&](int j) { total[j] = T(A(in[j]) + A(right[j])); });
          sync(lane);
          in = total;
        }
        const RowMoments<A> moments = moments_of<A>(lane, in, d);
        const A centre = moments.mean, inverse = A(1) / Kokkos::sqrt(moments.variance + epsilon);
        each(lane, d, [&](int j) { out[j] = T((A(in[j]) - centre) * inverse * w[j] + b[j]); });
        if (is_first(lane)) {
          mean(row) = centre;
          inv_std(row) = inverse;
        }
      });
}

template <class Exec, class T>
void layer_norm_backward(const Exec& exec, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                         Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> mean,
                         Vector<const Acc<T>, Exec> inv_std, Matrix<const T, Exec> residual, Matrix<T, Exec> dx,
                         RowTotal<Acc<T>, Exec> dweight, RowTotal<Acc<T>, Exec> dbias, Workspace<Exec>& workspace) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  const auto n = static_cast<std::int64_t>(x.extent(0));
  if (d == 0) return;
  const bool bypass = residual.size() > 0;
  auto frame = workspace.frame();
  const NormScratch<Exec, T> scratch(workspace, x.extent(0), weight.extent(0));
  const Matrix<A, Exec> dw_partial = scratch.weight.partial, db_partial = scratch.bias.partial;
  for_rows(
      "layer_norm_back", exec, row_chunks(n), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t chunk) {
        const A* w = weight.data();
        A *dw = row_of(dw_partial, chunk), *db = row_of(db_partial, chunk);
        each(lane, d, [&](int j) { dw[j] = db[j] = A(0); });
        const std::int64_t end = (chunk + 1) * row_chunk < n ? (chunk + 1) * row_chunk : n;
        for (std::int64_t row = chunk * row_chunk; row < end; ++row) {
          const T *in = row_of(x, row), *grad = row_of(dy, row);
          T* out = row_of(dx, row);
          const A centre = mean(row), inverse = inv_std(row);
          const A across = sum_over<A>(lane, d, [&](int j) { return A(grad[j]) * w[j]; }) / A(d);
          const A along =
              sum_over<A>(lane, d, [&](int j) { return A(grad[j]) * w[j] * (A(in[j]) - centre); }) * inverse / A(d);
          const T* around = bypass ? row_of(residual, row) : grad;
          const A keep = bypass ? A(1) : A(0);
          each(lane, d, [&](int j) {
            const A g = A(grad[j]), unit = (A(in[j]) - centre) * inverse;
            dw[j] += g * unit;
            db[j] += g;
            out[j] = T(keep * A(around[j]) + (g * w[j] - across - unit * along) * inverse);
          });
        }
      });
  add_chunks(exec, dw_partial, dweight);
  add_chunks(exec, db_partial, dbias);
}

#define SESTINA_NORM(Exec, T)                                                                                          \
  template void rms_norm<Exec, T>(const Exec&, Matrix<const T, Exec>, Vector<const Acc<T>, Exec>, double,              \
                                  Matrix<T, Exec>, Vector<Acc<T>, Exec>);                                              \
  template void add_rms_norm<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>,                       \
                                      Vector<const Acc<T>, Exec>, double, Matrix<T, Exec>, Matrix<T, Exec>,            \
                                      Vector<Acc<T>, Exec>);                                                           \
  template void rms_norm_backward<Exec, T>(                                                                            \
      const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>, Vector<const Acc<T>, Exec>,                           \
      Vector<const Acc<T>, Exec>, Matrix<const T, Exec>, Matrix<T, Exec>, RowTotal<Acc<T>, Exec>, Workspace<Exec>&);   \
  template void add<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<T, Exec>);              \
  template void add_layer_norm<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>,                     \
                                        Vector<const Acc<T>, Exec>, Vector<const Acc<T>, Exec>, double,                \
                                        Matrix<T, Exec>, Matrix<T, Exec>, Vector<Acc<T>, Exec>, Vector<Acc<T>, Exec>); \
  template void layer_norm_backward<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>,                \
                                             Vector<const Acc<T>, Exec>, Vector<const Acc<T>, Exec>,                   \
                                             Vector<const Acc<T>, Exec>, Matrix<const T, Exec>, Matrix<T, Exec>,       \
                                             RowTotal<Acc<T>, Exec>, RowTotal<Acc<T>, Exec>, Workspace<Exec>&);
SESTINA_INSTANTIATE(SESTINA_NORM)

}  // namespace sestina
