#include "kernels/optimizer/matrix_update.hpp"

#include <algorithm>

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/muon/moment_batch.hpp"

namespace sestina {

namespace {

// The weight moves, element by element, along O as it is,
struct Plain {
  KOKKOS_INLINE_FUNCTION float operator()(float o, std::size_t, std::size_t) const { return o; }
};
// along O with a gain for each row or column, all times *scale,
struct Gained {
  const float *gain, *scale;
  bool by_row;
  KOKKOS_INLINE_FUNCTION float operator()(float o, std::size_t i, std::size_t j) const {
    return o * (*scale * gain[by_row ? i : j]);
  }
};
// or along O divided by the root of its second moment (m, n).
struct Adapted {
  const float *moment, *scale;
  float eps;
  std::size_t cols;
  KOKKOS_INLINE_FUNCTION float operator()(float o, std::size_t i, std::size_t j) const {
    return *scale * o / (Kokkos::sqrt(moment[i * cols + j]) + eps);
  }
};

// Moves elements (i, j) to (i, j + n). weight may be null.
template <class T, class Direction>
KOKKOS_INLINE_FUNCTION void move_piece(const MoveFactors& f, const Direction& direction, std::size_t i, std::size_t j,
                                       std::size_t n, const T* __restrict o, float* __restrict master,
                                       bf16* __restrict weight) {
  for (std::size_t c = 0; c < n; ++c)
    master[c] = f.after * (f.before * master[c] - f.step * direction(static_cast<float>(o[c]), i, j + c));
  flag_nonfinite(n, master, f.nonfinite);
  if (weight == nullptr) return;
  for (std::size_t c = 0; c < n; ++c) weight[c] = bf16(master[c]);
}

// given: O (m, n), or its transpose.
template <class Space, class T, class Direction>
void move(const Space& exec, const WeightMove& step, Matrix<const T, Space> given, const Direction& direction,
          Matrix<float, Space> master, Matrix<bf16, Space> weight) {
  const std::size_t m = master.extent(0), n = master.extent(1), rows = given.extent(0), cols = given.extent(1);
  SESTINA_REQUIRE(
      ((rows == m && cols == n) || (rows == n && cols == m)) && (weight.size() == master.size() || weight.size() == 0),
      "direction ({}, {}), master ({}, {}), weight of {}", rows, cols, m, n, weight.size());
  const MoveFactors f(step);
  float* to = master.data();
  bf16* rounded = weight.size() == 0 ? nullptr : weight.data();
  for_each_row(
      "muon_move", exec, given, m, n, KOKKOS_LAMBDA(std::size_t i, std::size_t j, std::size_t count, const T* o) {
        const std::size_t at = i * n + j;
        move_piece(f, direction, i, j, count, o, to + at, rounded == nullptr ? nullptr : rounded + at);
      });
}

// Sets squares to the sums of squares of the columns of X, or of its rows.
template <class Space, class T>
void sum_lines(const Space& exec, Matrix<const T, Space> x, bool columns, Vector<double, Space> squares) {
  const std::size_t rows = x.extent(0), cols = x.extent(1);
  const T* data = x.data();
  double* sums = squares.data();
  if (!columns) {
    Kokkos::parallel_for(
        "normuon_rows", Kokkos::RangePolicy<Space>(exec, 0, rows), KOKKOS_LAMBDA(std::size_t i) {
          sums[i] = lane_sum(cols, [=](std::size_t j) { return square(data[i * cols + j]); });
        });
    return;
  }
  constexpr std::size_t width = is_host<Space> ? 256 : 1;
  Kokkos::parallel_for(
      "normuon_cols", Kokkos::RangePolicy<Space>(exec, 0, (cols + width - 1) / width),
      KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t first = piece * width, end = Kokkos::min(cols, first + width);
        for (std::size_t j = first; j < end; ++j) sums[j] = 0;
        for (std::size_t i = 0; i < rows; ++i)
          for (std::size_t j = first; j < end; ++j) sums[j] += square(data[i * cols + j]);
      });
}

// Makes sums of a shard those of the matrix.
template <class Space>
void sum_shards(const Space& exec, const MovedMatrix<Space>& to, Vector<double, Space> sums) {
  if (!to.counted) set_zero(exec, sums);
  (*to.sum)(sums);
}

// Makes the totals (2) of a shard those of the matrix, and sets the scale (1) by them.
template <class Space>
void sum_totals(const Space& exec, const SecondMoment& rule, const MovedMatrix<Space>& to, Vector<double, Space> totals,
                Vector<float, Space> scale) {
  if (to.sum == nullptr || !rule.keep_norm) return;
  sum_shards(exec, to, totals);
  Kokkos::parallel_for(
      "muon_kept_norm", Kokkos::RangePolicy<Space>(exec, 0, 1),
      KOKKOS_LAMBDA(std::size_t) { scale(0) = kept_norm(true, totals(0), totals(1)); });
}

// Sets V += (1 - beta2) (mean - V), gain = max(V, eps)^-1/2, the totals, and scale = |O| / |O gain|, or 1.
template <class Space>
void normuon_gains(const Space& exec, const SecondMoment& rule, std::size_t per_line, Vector<float, Space> moment,
                   const NorMuonScratch<Space>& scratch) {
  const Vector<double, Space> squares = scratch.squares, totals = scratch.totals;
  const Vector<float, Space> gain = scratch.gain, scale = scratch.scale;
  const MomentRates rates(rule);
  const double share = 1.0 / static_cast<double>(per_line);
  const std::size_t lines = moment.extent(0);
  constexpr std::size_t length = is_host<Space> ? 1024 : 1;
  Kokkos::parallel_for(
      "normuon_gains", Kokkos::RangePolicy<Space>(exec, 0, (lines + length - 1) / length),
      KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t end = Kokkos::min(lines, (piece + 1) * length);
        for (std::size_t i = piece * length; i < end; ++i)
          gain(i) = rates.gain(static_cast<float>(share * squares(i)), moment(i));
      });
  const bool keep = rule.keep_norm;
  sum_all(
      "normuon_before", exec, lines, KOKKOS_LAMBDA(std::size_t i) { return squares(i); },
      KOKKOS_LAMBDA(double sum) { totals(0) = sum; });
  sum_all(
      "normuon_after", exec, lines, KOKKOS_LAMBDA(std::size_t i) { return squares(i) * square(gain(i)); },
      KOKKOS_LAMBDA(double sum) {
        totals(1) = sum;
        scale(0) = kept_norm(keep, totals(0), sum);
      });
}

// Adds (1 - beta2) (O^2 - V) to n elements of V; returns the sum of squares of O / (root V + eps).
template <class T>
KOKKOS_INLINE_FUNCTION double adapt_piece(const MomentRates& rates, std::size_t n, const T* __restrict o,
                                          float* __restrict moment) {
  for (std::size_t c = 0; c < n; ++c) rates.take(static_cast<float>(o[c]), moment[c]);
  return lane_sum(n, [=](std::size_t c) { return square(rates.divided(static_cast<float>(o[c]), moment[c])); });
}

// Updates the moment (m, n); after(band) receives the squares of the direction in each band of rows of the moment.
template <class Space, class T>
void adapt_moment(const Space& exec, const SecondMoment& rule, Matrix<const T, Space> direction,
                  Matrix<float, Space> moment, Vector<double, Space> after) {
  const std::size_t m = moment.extent(0), n = moment.extent(1);
  const bool turned = direction.extent(0) != m;
  const MomentRates rates(rule);
  const T* x = direction.data();
  float* v = moment.data();
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for("adamuon_moment", Kokkos::RangePolicy<Space>(exec, 0, band_count(m)), [=](std::size_t band) {
      double sum = 0;
      read_band(x, turned, m, n, band, [&](std::size_t i, std::size_t j, std::size_t count, const T* o) {
        sum += adapt_piece(rates, count, o, v + i * n + j);
      });
      after(band) = sum;
    });
  } else {
    sum_pieces(
        "adamuon_moment", exec, m * n, band_rows * n, after, KOKKOS_LAMBDA(std::size_t at, std::size_t) {
          const std::size_t i = at / n, j = at % n;
          return adapt_piece(rates, 1, x + (turned ? j * m + i : at), v + at);
        });
  }
}

// Sets before(c) to the chunk sums of the squares of O.
template <class Space, class T>
void sum_direction(const Space& exec, Matrix<const T, Space> direction, std::size_t length,
                   Vector<double, Space> before) {
  const T* x = direction.data();
  sum_pieces(
      "adamuon_before", exec, direction.size(), length, before, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) { return square(x[begin + i]); });
      });
}

}  // namespace

template <class Space, class T>
void move_weight_wide(const Space& exec, const WeightMove& step, Matrix<const T, Space> direction,
                      Matrix<float, Space> master, Matrix<bf16, Space> weight) {
  move<Space, T>(exec, step, direction, Plain{}, master, weight);
}

template <class Space, class T>
void move_weight_normuon(const Space& exec, const WeightMove& step, const SecondMoment& rule,
                         Matrix<const T, Space> direction, Vector<float, Space> second_moment,
                         const MovedMatrix<Space>& to, Workspace<Space>& workspace) {
  const std::size_t m = to.master.extent(0), n = to.master.extent(1), lines = to.tall() ? m : n;
  SESTINA_REQUIRE(second_moment.extent(0) == lines, "second moment of {} for {} x {}", second_moment.extent(0), m, n);
  if (to.sum == nullptr && to.master.size() == 0) return;
  const auto frame = workspace.frame();
  const NorMuonScratch<Space> s(workspace, lines);
  const bool turned = direction.extent(0) != m, cuts_lines = to.tall() ? n != to.cols : m != to.rows;
  sum_lines<Space, T>(exec, direction, to.tall() == turned, s.squares);
  if (cuts_lines) sum_shards<Space>(exec, to, s.squares);
  normuon_gains<Space>(exec, rule, std::min(to.rows, to.cols), second_moment, s);
  if (!cuts_lines) sum_totals<Space>(exec, rule, to, s.totals, s.scale);
  move<Space, T>(exec, step, direction, Gained{s.gain.data(), s.scale.data(), to.tall()}, to.master, to.weight);
}

template <class Space, class T>
void move_weight_adamuon(const Space& exec, const WeightMove& step, const SecondMoment& rule,
                         Matrix<const T, Space> direction, Matrix<float, Space> second_moment,
                         const MovedMatrix<Space>& to, Workspace<Space>& workspace) {
  const std::size_t m = to.master.extent(0), n = to.master.extent(1), bands = n == 0 ? 0 : band_count(m);
  SESTINA_REQUIRE(second_moment.extent(0) == m && second_moment.extent(1) == n, "second moment ({}, {}) for {} x {}",
                  second_moment.extent(0), second_moment.extent(1), m, n);
  if (to.sum == nullptr && to.master.size() == 0) return;
  const auto frame = workspace.frame();
  const AdaMuonScratch<Space> s(workspace, m);
  const Vector<double, Space> before = s.before, after = s.after, totals = s.totals;
  const Vector<float, Space> scale = s.scale;
  if (bands > 0) {
    sum_direction<Space, T>(exec, direction, band_rows * n, before);
    adapt_moment<Space, T>(exec, rule, direction, second_moment, after);
  }
  const bool keep = rule.keep_norm;
  sum_all(
      "adamuon_norm", exec, bands, KOKKOS_LAMBDA(std::size_t i) { return before(i); },
      KOKKOS_LAMBDA(double sum) { totals(0) = sum; });
  sum_all(
      "adamuon_scale", exec, bands, KOKKOS_LAMBDA(std::size_t i) { return after(i); },
      KOKKOS_LAMBDA(double sum) {
        totals(1) = sum;
        scale(0) = kept_norm(keep, totals(0), sum);
      });
  sum_totals<Space>(exec, rule, to, totals, scale);
  const Adapted adapted{second_moment.data(), scale.data(), static_cast<float>(rule.eps), n};
  move<Space, T>(exec, step, direction, adapted, to.master, to.weight);
}

#define SESTINA_MUON_TYPE(Space, T)                                                                                    \
  template void move_weight_wide<Space, T>(const Space&, const WeightMove&, Matrix<const T, Space>,                    \
                                           Matrix<float, Space>, Matrix<bf16, Space>);                                 \
  template void move_weight_normuon<Space, T>(const Space&, const WeightMove&, const SecondMoment&,                    \
                                              Matrix<const T, Space>, Vector<float, Space>, const MovedMatrix<Space>&, \
                                              Workspace<Space>&);                                                      \
  template void move_weight_adamuon<Space, T>(const Space&, const WeightMove&, const SecondMoment&,                    \
                                              Matrix<const T, Space>, Matrix<float, Space>, const MovedMatrix<Space>&, \
                                              Workspace<Space>&);
#define SESTINA_MUON(Space)       \
  SESTINA_MUON_TYPE(Space, float) \
  SESTINA_MUON_TYPE(Space, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_MUON)

}  // namespace sestina
