#include "kernels/optimizer/rotated/rotated_adam.hpp"

#include "kernels/base/error.hpp"
#include "kernels/optimizer/rotated/rotated_ranges.hpp"

namespace sestina {
namespace {

// Elements per thread at a time: on the host long enough to vectorise and to stream, short enough to balance.
template <class Space>
constexpr std::size_t rotated_grain = is_host<Space> ? 8192 : 1;
// Rows and columns of a tile per thread at a time, for passes that need both indices.
template <class Space>
constexpr std::size_t tile_rows = is_host<Space> ? 16 : 1;

// Calls body(begin, count) for every piece of n elements.
template <class Space, class Body>
void for_pieces(const char* label, const Space& exec, std::size_t n, const Body& body) {
  constexpr std::size_t length = rotated_grain<Space>;
  const Kokkos::RangePolicy<Space> pieces(exec, 0, (n + length - 1) / length);
  Kokkos::parallel_for(
      label, pieces, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t begin = piece * length;
        body(begin, Kokkos::min(length, n - begin));
      });
}

// Calls body(row, begin, count): on the host for whole rows, on a device for one element each.
template <class Space, class Body>
void for_lines(const char* label, const Space& exec, std::size_t rows, std::size_t cols, const Body& body) {
  if (cols == 0) return;
  if constexpr (is_host<Space>) {
    constexpr std::size_t height = tile_rows<Space>;
    const Kokkos::RangePolicy<Space> chunks(exec, 0, (rows + height - 1) / height);
    Kokkos::parallel_for(label, chunks, [=](std::size_t chunk) {
      for (std::size_t row = chunk * height; row < Kokkos::min(rows, (chunk + 1) * height); ++row) body(row, 0, cols);
    });
  } else {
    const Kokkos::RangePolicy<Space> elements(exec, 0, rows * cols);
    Kokkos::parallel_for(
        label, elements, KOKKOS_LAMBDA(std::size_t i) { body(i / cols, i % cols, std::size_t{1}); });
  }
}

// More loops as those of rotated_ranges.hpp.
KOKKOS_INLINE_FUNCTION void direction_range(const AdamRates& r, float scale, std::size_t n,
                                            const float* __restrict gradient, float* __restrict m, float* __restrict v,
                                            float* __restrict d) {
  for (std::size_t i = 0; i < n; ++i) {
    const float g = scale * gradient[i];
    m[i] += r.one_minus_beta1 * (g - m[i]);
    v[i] += r.one_minus_beta2 * (g * g - v[i]);
    d[i] = m[i] / (Kokkos::sqrt(v[i]) + r.eps);
  }
}
KOKKOS_INLINE_FUNCTION void gather_range(std::size_t n, const float* __restrict from,
                                         const std::int32_t* __restrict order, float* __restrict to) {
  for (std::size_t j = 0; j < n; ++j) to[j] = from[order[j]];
}
KOKKOS_INLINE_FUNCTION void copy_range(std::size_t n, const float* __restrict from, float* __restrict to) {
  for (std::size_t j = 0; j < n; ++j) to[j] = from[j];
}

template <class A, class B>
void require_equal(const char* what, const A& a, const B& b) {
  SESTINA_REQUIRE(a == b, "{}: sizes {} and {}", what, a, b);
}
// Requires the factors to be either empty or as long as the axis.
template <class View>
void require_axis(const char* what, const View& factor, std::size_t n) {
  SESTINA_REQUIRE(factor.extent(0) == 0 || factor.extent(0) == n, "{}: {} values for an axis of {}", what,
                  factor.extent(0), n);
}

}  // namespace

template <class Space>
void average_momentum(const Space& exec, double beta1, double scale, Vector<const float, Space> gradient,
                      Vector<float, Space> momentum) {
  require_equal("average_momentum", gradient.extent(0), momentum.extent(0));
  const auto rate = static_cast<float>(1 - beta1), factor = static_cast<float>(scale);
  for_pieces(
      "average_m", exec, momentum.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t count) {
        average_range(rate, factor, count, gradient.data() + at, momentum.data() + at);
      });
}

template <class Space>
void rotated_adam(const Space& exec, const AdamRule& rule, Vector<const float, Space> gradient, Vector<float, Space> v,
                  Vector<float, Space> direction) {
  require_equal("rotated_adam", gradient.extent(0), v.extent(0));
  require_equal("rotated_adam", direction.extent(0), v.extent(0));
  const AdamRates rates(rule);
  for_pieces(
      "rotated_adam", exec, v.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t count) {
        rotated_range(rates, count, gradient.data() + at, v.data() + at, direction.data() + at);
      });
}

template <class Space>
void average_squares(const Space& exec, double beta2, Vector<const float, Space> gradient, Vector<float, Space> v) {
  require_equal("average_squares", gradient.extent(0), v.extent(0));
  const auto rate = static_cast<float>(1 - beta2);
  for_pieces(
      "average_squares", exec, v.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t count) {
        square_range(rate, count, gradient.data() + at, v.data() + at);
      });
}

template <class Space>
void divide_by_root(const Space& exec, double eps, Vector<const float, Space> v, Vector<float, Space> direction) {
  require_equal("divide_by_root", direction.extent(0), v.extent(0));
  const auto small = static_cast<float>(eps);
  for_pieces(
      "divide_by_root", exec, v.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t count) {
        divide_range(small, count, v.data() + at, direction.data() + at);
      });
}

template <class Space>
void adam_direction(const Space& exec, const AdamRule& rule, double scale, Vector<const float, Space> gradient,
                    Vector<float, Space> momentum, Vector<float, Space> v, Vector<float, Space> direction) {
  require_equal("adam_direction", gradient.extent(0), v.extent(0));
  require_equal("adam_direction", momentum.extent(0), v.extent(0));
  require_equal("adam_direction", direction.extent(0), v.extent(0));
  const AdamRates rates(rule);
  const auto factor = static_cast<float>(scale);
  for_pieces(
      "adam_direction", exec, v.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t count) {
        direction_range(rates, factor, count, gradient.data() + at, momentum.data() + at, v.data() + at,
                        direction.data() + at);
      });
}

template <class Space>
void adam_direction(const Space& exec, const AdamRule& rule, double scale, Vector<const float, Space> gradient,
                    const CodedMoments<Space>& moments, Vector<float, Space> direction) {
  require_equal("adam_direction", gradient.extent(0), moments.m.size());
  require_equal("adam_direction", direction.extent(0), moments.m.size());
  const AdamRates rates(rule);
  const auto factor = static_cast<float>(scale);
  update_moments<float>(
      "direction_8bit", exec, moments.arrays(),
      KOKKOS_LAMBDA(const MomentArrays&, std::size_t at, std::size_t count, float* m, float* v) {
        direction_range(rates, factor, count, gradient.data() + at, m, v, direction.data() + at);
      });
}

template <class Space>
void scale_lines(const Space& exec, Vector<const float, Space> rows, Vector<const float, Space> cols,
                 Matrix<float, Space> x) {
  require_axis("scale_lines", rows, x.extent(0));
  require_axis("scale_lines", cols, x.extent(1));
  const bool by_row = rows.extent(0) != 0, by_col = cols.extent(0) != 0;
  for_lines(
      "scale_lines", exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::size_t row, std::size_t at, std::size_t count) {
        const float factor = by_row ? rows(row) : 1.0f;
        float* values = &x(row, at);
        if (by_col) return scale_range(factor, count, cols.data() + at, values);
        for (std::size_t j = 0; j < count; ++j) values[j] *= factor;
      });
}

template <class Space>
void scale_damped(const Space& exec, double eps, Vector<const float, Space> rows, Vector<const float, Space> cols,
                  Matrix<float, Space> x) {
  require_equal("scale_damped", rows.extent(0), x.extent(0));
  require_equal("scale_damped", cols.extent(0), x.extent(1));
  const auto small = static_cast<float>(eps);
  for_lines(
      "scale_damped", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::size_t row, std::size_t at, std::size_t count) {
        damped_range(small, rows(row), count, cols.data() + at, &x(row, at));
      });
}

template <class Space>
void permute(const Space& exec, Vector<const std::int32_t, Space> rows, Vector<const std::int32_t, Space> cols,
             Matrix<float, Space> x, Matrix<float, Space> scratch) {
  require_axis("permute", rows, x.extent(0));
  require_axis("permute", cols, x.extent(1));
  require_equal("permute", scratch.size(), x.size());
  const bool by_row = rows.extent(0) != 0, by_col = cols.extent(0) != 0;
  if (!by_row && !by_col) return;
  for_lines(
      "permute", exec, x.extent(0), x.extent(1), KOKKOS_LAMBDA(std::size_t row, std::size_t at, std::size_t count) {
        const float* from = &x(by_row ? static_cast<std::size_t>(rows(row)) : row, 0);
        if (by_col)
          gather_range(count, from, cols.data() + at, &scratch(row, at));
        else
          copy_range(count, from + at, &scratch(row, at));
      });
  for_lines(
      "permute_back", exec, x.extent(0), x.extent(1),
      KOKKOS_LAMBDA(std::size_t row, std::size_t at, std::size_t count) {
        copy_range(count, &scratch(row, at), &x(row, at));
      });
}

template <class Space>
void scale_values(const Space& exec, double factor, Vector<float, Space> x) {
  const auto by = static_cast<float>(factor);
  for_pieces(
      "scale_values", exec, x.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t count) {
        float* values = x.data() + at;
        for (std::size_t i = 0; i < count; ++i) values[i] *= by;
      });
}

template <class Space>
void fill_values(const Space& exec, double value, Vector<float, Space> x) {
  const auto one = static_cast<float>(value);
  for_pieces(
      "fill_values", exec, x.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t count) {
        float* values = x.data() + at;
        for (std::size_t i = 0; i < count; ++i) values[i] = one;
      });
}

template <class Space>
void average_eigenvalues(const Space& exec, double beta, double count, double ceiling,
                         Vector<const float, Space> sample, Vector<float, Space> values) {
  require_equal("average_eigenvalues", sample.extent(0), values.extent(0));
  const auto rate = static_cast<float>(1 - beta), scale = static_cast<float>(1 / count);
  const float least = least_eigenvalue(ceiling);
  for_pieces(
      "average_eigen", exec, values.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t n) {
        for (std::size_t i = at; i < at + n; ++i) values(i) = next_eigenvalue(rate, scale, least, sample(i), values(i));
      });
}

template <class Space>
void inverse_square_roots(const Space& exec, Vector<const float, Space> values, Vector<float, Space> roots) {
  require_equal("inverse_square_roots", values.extent(0), roots.extent(0));
  for_pieces(
      "inverse_roots", exec, values.extent(0), KOKKOS_LAMBDA(std::size_t at, std::size_t n) {
        for (std::size_t i = at; i < at + n; ++i) roots(i) = inverse_square_root(values(i));
      });
}

#define SESTINA_ROTATED_ADAM(Space)                                                                                  \
  template void average_momentum<Space>(const Space&, double, double, Vector<const float, Space>,                    \
                                        Vector<float, Space>);                                                       \
  template void rotated_adam<Space>(const Space&, const AdamRule&, Vector<const float, Space>, Vector<float, Space>, \
                                    Vector<float, Space>);                                                           \
  template void average_squares<Space>(const Space&, double, Vector<const float, Space>, Vector<float, Space>);      \
  template void divide_by_root<Space>(const Space&, double, Vector<const float, Space>, Vector<float, Space>);       \
  template void adam_direction<Space>(const Space&, const AdamRule&, double, Vector<const float, Space>,             \
                                      Vector<float, Space>, Vector<float, Space>, Vector<float, Space>);             \
  template void adam_direction<Space>(const Space&, const AdamRule&, double, Vector<const float, Space>,             \
                                      const CodedMoments<Space>&, Vector<float, Space>);                             \
  template void scale_lines<Space>(const Space&, Vector<const float, Space>, Vector<const float, Space>,             \
                                   Matrix<float, Space>);                                                            \
  template void scale_damped<Space>(const Space&, double, Vector<const float, Space>, Vector<const float, Space>,    \
                                    Matrix<float, Space>);                                                           \
  template void permute<Space>(const Space&, Vector<const std::int32_t, Space>, Vector<const std::int32_t, Space>,   \
                               Matrix<float, Space>, Matrix<float, Space>);                                          \
  template void scale_values<Space>(const Space&, double, Vector<float, Space>);                                     \
  template void fill_values<Space>(const Space&, double, Vector<float, Space>);                                      \
  template void average_eigenvalues<Space>(const Space&, double, double, double, Vector<const float, Space>,         \
                                           Vector<float, Space>);                                                    \
  template void inverse_square_roots<Space>(const Space&, Vector<const float, Space>, Vector<float, Space>);
SESTINA_INSTANTIATE_LANES(SESTINA_ROTATED_ADAM)

}  // namespace sestina
