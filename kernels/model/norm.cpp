#include "kernels/model/norm.hpp"

#include "kernels/blas/row_elements.hpp"

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
          each_element(
              lane, d, [&](const T& a, A of, T& to) { to = T(A(a) * inverse * of); }, in, w, Written(out));
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
        T *const total = row_of(sum, row), *const out = row_of(y, row);
        each_element(
            lane, d, [](const T& a, const T& b, T& to) { to = T(A(a) + A(b)); }, left, right, Written(total));
        sync(lane);
        const A squares = squares_of<A>(lane, total, d);
        const A inverse = A(1) / Kokkos::sqrt(squares / A(d) + epsilon);
        const T* const in = total;
        each_element(
            lane, d, [&](const T& a, A of, T& to) { to = T(A(a) * inverse * of); }, in, w, Written(out));
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
            const A along = sum_each<A>(
                lane, d, [](const T& g_y, A of, const T& a) { return A(g_y) * of * A(a); }, grad, w, in);
            const A slope = along * inverse * inverse / A(d);
            if (bypass) {
              const T* around = row_of(residual, row) + g * d;
              each_element(
                  lane, d,
                  [&](const T& g_y, const T& a, A of, const T& past, A& sum, T& to) {
                    const A scaled = A(g_y) * inverse;
                    sum += scaled * A(a);
                    to = T(A(past) + scaled * of - inverse * slope * A(a));
                  },
                  grad, in, w, around, dw, Written(out));
            } else {
              rms_norm_row_backward(lane, d, inverse, slope, grad, in, w, dw, out);
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
        each_element(
            lane, d, [](const T& a, const T& b, T& to) { to = T(A(a) + A(b)); }, left, right, Written(total));
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
          each_element(
              lane, d, [](const T& a, const T& b, T& to) { to = T(A(a) + A(b)); }, in, right, Written(total));
          sync(lane);
          in = total;
        }
        const RowMoments<A> moments = moments_of<A>(lane, in, d);
        const A centre = moments.mean, inverse = A(1) / Kokkos::sqrt(moments.variance + epsilon);
        each_element(
            lane, d, [&](const T& a, A of, A shift, T& to) { to = T((A(a) - centre) * inverse * of + shift); }, in, w,
            b, Written(out));
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
          const A across = sum_each<A>(
                               lane, d, [](const T& g_y, A of) { return A(g_y) * of; }, grad, w) /
                           A(d);
          const A along =
              sum_each<A>(
                  lane, d, [&](const T& g_y, A of, const T& a) { return A(g_y) * of * (A(a) - centre); }, grad, w, in) *
              inverse / A(d);
          const T* around = bypass ? row_of(residual, row) : grad;
          const A keep = bypass ? A(1) : A(0);
          each_element(
              lane, d,
              [&](const T& g_y, const T& a, A of, const T& past, A& weight_sum, A& bias_sum, T& to) {
                const A g = A(g_y), unit = (A(a) - centre) * inverse;
                weight_sum += g * unit;
                bias_sum += g;
                to = T(keep * A(past) + (g * of - across - unit * along) * inverse);
              },
              grad, in, w, around, dw, db, Written(out));
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
