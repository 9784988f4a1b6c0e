#include "kernels/model/norm.hpp"

#include "kernels/blas/row_elements.hpp"

namespace sestina {

template <class Exec, class T>
void split_row_squares(const Exec& exec, Matrix<const T, Exec> x, Acc<T> share, Vector<Acc<T>, Exec> squares) {
  using A = Acc<T>;
  const int d = static_cast<int>(x.extent(1));
  for_rows(
      "split_row_squares", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T* in = row_of(x, row);
        const A sum = squares_of<A>(lane, in, d);
        if (is_first(lane)) squares(row) = share * sum;
      });
}

template <class Exec, class T>
void split_rms_norm(const Exec& exec, Matrix<const T, Exec> x, Vector<const Acc<T>, Exec> weight,
                    Vector<const Acc<T>, Exec> squares, std::int64_t width, double eps, Matrix<T, Exec> y,
                    Vector<Acc<T>, Exec> inv_rms) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  const A epsilon = static_cast<A>(eps), columns = static_cast<A>(width);
  for_rows(
      "split_norm", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const A* w = weight.data();
        const T* in = row_of(x, row);
        T* out = row_of(y, row);
        const A inverse = A(1) / Kokkos::sqrt(squares(row) / columns + epsilon);
        each_element(
            lane, d, [&](const T& a, A of, T& to) { to = T(A(a) * inverse * of); }, in, w, Written(out));
        if (is_first(lane)) inv_rms(row) = inverse;
      });
}

template <class Exec, class T>
void row_products(const Exec& exec, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                  Vector<const Acc<T>, Exec> weight, Vector<Acc<T>, Exec> along) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  for_rows(
      "row_products", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const A* w = weight.data();
        const T *in = row_of(x, row), *grad = row_of(dy, row);
        const A sum = sum_each<A>(
            lane, d, [](const T& g_y, A of, const T& a) { return A(g_y) * of * A(a); }, grad, w, in);
        if (is_first(lane)) along(row) = sum;
      });
}

template <class Exec, class T>
void split_rms_norm_backward(const Exec& exec, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                             Vector<const Acc<T>, Exec> weight, Vector<const Acc<T>, Exec> inv_rms,
                             Vector<const Acc<T>, Exec> along, std::int64_t width, Acc<T> share, Matrix<T, Exec> dx,
                             RowTotal<Acc<T>, Exec> dweight, Workspace<Exec>& workspace) {
  using A = Acc<T>;
  const int d = static_cast<int>(weight.extent(0));
  const auto n = static_cast<std::int64_t>(x.extent(0));
  if (d == 0) return;
  const A per_column = share / static_cast<A>(width);
  auto frame = workspace.frame();
  const Matrix<A, Exec> partial = RowSumScratch<Exec, A>(workspace, x.extent(0), weight.extent(0)).partial;
  for_rows(
      "split_norm_back", exec, row_chunks(n), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t chunk) {
        const A* w = weight.data();
        A* dw = row_of(partial, chunk);
        each(lane, d, [&](int j) { dw[j] = A(0); });
        sync(lane);
        const std::int64_t end = (chunk + 1) * row_chunk < n ? (chunk + 1) * row_chunk : n;
        for (std::int64_t row = chunk * row_chunk; row < end; ++row) {
          const T *in = row_of(x, row), *grad = row_of(dy, row);
          T* out = row_of(dx, row);
          const A inverse = inv_rms(row), slope = along(row) * inverse * inverse * per_column;
          rms_norm_row_backward(lane, d, inverse, slope, grad, in, w, dw, out);
          sync(lane);
        }
      });
  add_chunks(exec, partial, dweight);
}

#define SESTINA_SPLIT_NORM(Exec, T)                                                                                 \
  template void split_row_squares<Exec, T>(const Exec&, Matrix<const T, Exec>, Acc<T>, Vector<Acc<T>, Exec>);       \
  template void split_rms_norm<Exec, T>(const Exec&, Matrix<const T, Exec>, Vector<const Acc<T>, Exec>,             \
                                        Vector<const Acc<T>, Exec>, std::int64_t, double, Matrix<T, Exec>,          \
                                        Vector<Acc<T>, Exec>);                                                      \
  template void row_products<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>,                    \
                                      Vector<const Acc<T>, Exec>, Vector<Acc<T>, Exec>);                            \
  template void split_rms_norm_backward<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>,         \
                                                 Vector<const Acc<T>, Exec>, Vector<const Acc<T>, Exec>,            \
                                                 Vector<const Acc<T>, Exec>, std::int64_t, Acc<T>, Matrix<T, Exec>, \
                                                 RowTotal<Acc<T>, Exec>, Workspace<Exec>&);
SESTINA_INSTANTIATE(SESTINA_SPLIT_NORM)

}  // namespace sestina
