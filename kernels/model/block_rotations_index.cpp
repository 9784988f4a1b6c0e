#include "kernels/model/block_rotations.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {

namespace {

template <class X, class Y, class Index>
void require_columns(const X& x, const Index& index, const Y& y) {
  SESTINA_REQUIRE(x.extent(0) == y.extent(0) && x.extent(1) == y.extent(1) && index.extent(0) == x.extent(1),
                  "x ({}, {}), an index of {}, y ({}, {})", x.extent(0), x.extent(1), index.extent(0), y.extent(0),
                  y.extent(1));
}

}  // namespace

template <class Exec, class T>
void take_columns(const Exec& exec, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, bool add,
                  Matrix<T, Exec> y) {
  using A = Acc<T>;
  require_columns(x, index, y);
  for_elements(
      "take_columns", exec, y.extent(0), y.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const T* from = &x(i, 0);
        T* to = &y(i, 0);
        if (add)
          for (std::size_t j = begin; j < end; ++j) to[j] = T(A(to[j]) + A(from[index(j)]));
        else
          for (std::size_t j = begin; j < end; ++j) to[j] = from[index(j)];
      });
}

template <class Exec, class T>
void put_columns(const Exec& exec, Matrix<const T, Exec> x, Vector<const std::int32_t, Exec> index, Matrix<T, Exec> y) {
  require_columns(x, index, y);
  for_elements(
      "put_columns", exec, y.extent(0), y.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const T* from = &x(i, 0);
        T* to = &y(i, 0);
        for (std::size_t j = begin; j < end; ++j) to[index(j)] = from[j];
      });
}

template <class Exec, class T>
void copy_other_columns(const Exec& exec, Matrix<const T, Exec> x, std::size_t size, std::size_t apart,
                        Matrix<T, Exec> y) {
  for_elements(
      "other_columns", exec, y.extent(0), y.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        for (std::size_t part = begin / apart * apart; part < end; part += apart) {
          const std::size_t first = part + size > begin ? part + size : begin,
                            last = part + apart < end ? part + apart : end;
          for (std::size_t j = first; j < last; ++j) y(i, j) = x(i, j);
        }
      });
}

template <class Exec, class From, class To>
void take_elements(const Exec& exec, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                   Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y) {
  require_columns(x, cols, y);
  SESTINA_REQUIRE(rows.extent(0) == x.extent(0), "an index of {} for {} rows", rows.extent(0), x.extent(0));
  for_elements(
      "take_elements", exec, y.extent(0), y.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const From* from = &x(rows(i), 0);
        To* to = &y(i, 0);
        for (std::size_t j = begin; j < end; ++j) to[j] = To(static_cast<Acc<From>>(from[cols(j)]));
      });
}

template <class Exec, class From, class To>
void put_elements(const Exec& exec, Matrix<const From, Exec> x, Vector<const std::int32_t, Exec> rows,
                  Vector<const std::int32_t, Exec> cols, Matrix<To, Exec> y) {
  SESTINA_REQUIRE(rows.extent(0) == x.extent(0) && cols.extent(0) == x.extent(1) && y.extent(1) == x.extent(1) &&
                      y.extent(0) >= x.extent(0),
                  "x ({}, {}), indexes of {} and {}, y ({}, {})", x.extent(0), x.extent(1), rows.extent(0),
                  cols.extent(0), y.extent(0), y.extent(1));
  for_elements(
      "put_elements", exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        const From* from = &x(i, 0);
        To* to = &y(rows(i), 0);
        for (std::size_t j = begin; j < end; ++j) to[cols(j)] = To(static_cast<Acc<From>>(from[j]));
      });
}

template <class Exec>
void invert_index(const Exec& exec, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> inverse) {
  for_elements(
      "invert_index", exec, 1, index.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) inverse(index(i)) = static_cast<std::int32_t>(i);
      });
}

template <class Exec>
void follow_index(const Exec& exec, Vector<const std::int32_t, Exec> index, Vector<std::int32_t, Exec> places) {
  for_elements(
      "follow_index", exec, 1, places.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) places(i) = index(places(i));
      });
}

#define SESTINA_COLUMNS(Exec, T)                                                                                  \
  template void take_columns<Exec, T>(const Exec&, Matrix<const T, Exec>, Vector<const std::int32_t, Exec>, bool, \
                                      Matrix<T, Exec>);                                                           \
  template void put_columns<Exec, T>(const Exec&, Matrix<const T, Exec>, Vector<const std::int32_t, Exec>,        \
                                     Matrix<T, Exec>);                                                            \
  template void copy_other_columns<Exec, T>(const Exec&, Matrix<const T, Exec>, std::size_t, std::size_t,         \
                                            Matrix<T, Exec>);
#define SESTINA_ELEMENTS(Exec, From, To)                                                                               \
  template void take_elements<Exec, From, To>(const Exec&, Matrix<const From, Exec>, Vector<const std::int32_t, Exec>, \
                                              Vector<const std::int32_t, Exec>, Matrix<To, Exec>);                     \
  template void put_elements<Exec, From, To>(const Exec&, Matrix<const From, Exec>, Vector<const std::int32_t, Exec>,  \
                                             Vector<const std::int32_t, Exec>, Matrix<To, Exec>);
#define SESTINA_INDEX_MAP(Exec)                                                                                \
  SESTINA_COLUMNS(Exec, float)                                                                                 \
  SESTINA_COLUMNS(Exec, double)                                                                                \
  SESTINA_COLUMNS(Exec, bf16)                                                                                  \
  template void invert_index<Exec>(const Exec&, Vector<const std::int32_t, Exec>, Vector<std::int32_t, Exec>); \
  template void follow_index<Exec>(const Exec&, Vector<const std::int32_t, Exec>, Vector<std::int32_t, Exec>); \
  SESTINA_ELEMENTS(Exec, float, float)                                                                         \
  SESTINA_ELEMENTS(Exec, float, bf16)                                                                          \
  SESTINA_ELEMENTS(Exec, double, double)
SESTINA_INSTANTIATE_LANES(SESTINA_INDEX_MAP)

}  // namespace sestina
