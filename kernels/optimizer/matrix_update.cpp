#include "kernels/optimizer/matrix_update.hpp"

#include "kernels/base/random.hpp"
#include "kernels/blas/bits.hpp"

namespace sestina {
namespace {

// Elements per thread at a time.
template <class Space>
constexpr std::size_t update_grain = is_host<Space> ? 8192 : 1;

// Returns 24 bits of SplitMix64 (kernels/blas/bits.hpp) at a key and a place, as a number in [0, 1).
KOKKOS_INLINE_FUNCTION float draw_at(std::uint64_t key, std::uint64_t place) {
  return static_cast<float>(static_cast<std::int32_t>(split_mix(key, place) >> 40)) * 0x1p-24f;
}

struct ValueRange {
  float low = 0, high = 0, sum = 0;  // low and high include 0; sum of magnitudes: not finite where a value is not
};

// Finds the range in lanes of a vector register: a minimum that runs through all values would be taken one by one.
template <class Value>
KOKKOS_INLINE_FUNCTION ValueRange range_of(std::size_t n, const Value& value) {
  constexpr std::size_t lanes = 16;
  float low[lanes] = {}, high[lanes] = {}, sum[lanes] = {};
  const std::size_t whole = n / lanes * lanes;
  for (std::size_t j = 0; j < whole; j += lanes)
    for (std::size_t k = 0; k < lanes; ++k) {
      const float x = value(j + k);
      low[k] = x < low[k] ? x : low[k];
      high[k] = x > high[k] ? x : high[k];
      sum[k] += Kokkos::fabs(x);
    }
  ValueRange range;
  for (std::size_t k = 0; k < lanes; ++k)
    range = {low[k] < range.low ? low[k] : range.low, high[k] > range.high ? high[k] : range.high, range.sum + sum[k]};
  for (std::size_t j = whole; j < n; ++j) {
    const float x = value(j);
    range = {x < range.low ? x : range.low, x > range.high ? x : range.high, range.sum + Kokkos::fabs(x)};
  }
  return range;
}

// Moves one group of a coded row. Its values are computed twice: for the grid, and for the codes. `columns` are the
// factors of the columns, or null; `factor` is that of all of them.
struct GroupMove {
  MoveFactors f;
  std::uint64_t key;

  KOKKOS_INLINE_FUNCTION void operator()(std::size_t n, std::size_t place, const float* __restrict direction,
                                         const float* __restrict columns, float factor, float& scale,
                                         std::uint8_t& zero, std::uint8_t* __restrict codes) const {
    constexpr float kept = 1.0f - 1.0f / 64;
    const CodeGrid<float> old{scale, zero};
    const float before = f.before, after = f.after, step = f.step * factor;  // copies: codes may alias anything
    const std::uint64_t own_key = key;
    const auto value = [&](std::size_t j) {
      const float length = columns == nullptr ? step : step * columns[j];
      return after * (before * old.value(codes[j]) - length * direction[j]);
    };
    const ValueRange range = range_of(n, value);
    flag_nonfinite(1, &range.sum, f.nonfinite);
    const bool keeps =
        range.low >= old.low() && range.high <= old.high() && range.high - range.low >= kept * (old.high() - old.low());
    const CodeGrid<float> grid = keeps ? old : CodeGrid<float>::of(range.low, range.high);
    for (std::size_t j = 0; j < n; ++j) {
      const float x = grid.place(value(j)), below = Kokkos::floor(x);
      codes[j] = CodeGrid<float>::code(draw_at(own_key, place + j) < x - below ? below + 1 : below);
    }
    scale = grid.scale;
    zero = grid.zero;
  }
};

}  // namespace

std::uint64_t rounding_key(std::uint64_t stream, std::int64_t t) {
  const Philox words = philox(stream, 0, static_cast<std::uint64_t>(t));
  return static_cast<std::uint64_t>(words[0]) << 32 | words[1];
}

template <class Space>
void move_coded(const Space& exec, const WeightMove& move, Matrix<const float, Space> direction,
                const ChannelFactors<Space>& factors, const CodedRows& w, std::uint64_t key) {
  const std::size_t channels = factors.values.extent(0);
  SESTINA_REQUIRE(direction.extent(0) == w.rows && direction.extent(1) == w.cols &&
                      (channels == 0 || channels == (factors.by_row ? w.rows : w.cols)),
                  "direction ({}, {}), coded weights ({}, {}), factors {}", direction.extent(0), direction.extent(1),
                  w.rows, w.cols, channels);
  const GroupMove group_move{MoveFactors(move), key};
  const float* const factor = channels == 0 ? nullptr : factors.values.data();
  const bool by_row = factors.by_row;
  const std::size_t groups = w.groups();
  const Kokkos::RangePolicy<Space> all(exec, 0, w.rows * groups);
  Kokkos::parallel_for(
      "move_coded", all, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t i = piece / groups, g = piece % groups, begin = g * w.group;
        const CodedRow row = w.row(i);
        group_move(Kokkos::min(w.group, w.cols - begin), i * w.cols + begin, &direction(i, begin),
                   factor == nullptr || by_row ? nullptr : factor + begin,
                   factor == nullptr || !by_row ? 1.0f : factor[i], row.scales[g], row.zeros[g], row.codes + begin);
      });
}

template <class Space, class TU>
void move_weight(const Space& exec, const WeightMove& move, Vector<const TU, Space> direction,
                 Vector<float, Space> master, Vector<bf16, Space> weight, Vector<const double, Space> factor) {
  const std::size_t n = master.extent(0);
  SESTINA_REQUIRE(direction.extent(0) == n && (weight.extent(0) == n || weight.extent(0) == 0),
                  "direction of {}, master {}, weight {}", direction.extent(0), n, weight.extent(0));
  constexpr std::size_t length = update_grain<Space>;
  const MoveFactors known(move);
  const double length_of_move = move.lr * move.scale;
  const bool has_factor = factor.extent(0) != 0;
  const bool has_weight = weight.extent(0) != 0;
  const Kokkos::RangePolicy<Space> pieces(exec, 0, (n + length - 1) / length);
  Kokkos::parallel_for(
      "move_weight", pieces, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t at = piece * length, count = Kokkos::min(length, n - at);
        MoveFactors f = known;
        if (has_factor) f.step = static_cast<float>(length_of_move * factor(0));
        move_range(f, count, direction.data() + at, master.data() + at, has_weight ? weight.data() + at : nullptr);
      });
}

#define SESTINA_MOVE_TYPE(Space, TU)                                                                                   \
  template void move_weight<Space, TU>(const Space&, const WeightMove&, Vector<const TU, Space>, Vector<float, Space>, \
                                       Vector<bf16, Space>, Vector<const double, Space>);
#define SESTINA_MOVE_CODED(Space)                                                              \
  template void move_coded<Space>(const Space&, const WeightMove&, Matrix<const float, Space>, \
                                  const ChannelFactors<Space>&, const CodedRows&, std::uint64_t);
#define SESTINA_MOVE(Space) SESTINA_MOVE_TYPE(Space, float) SESTINA_MOVE_TYPE(Space, bf16) SESTINA_MOVE_CODED(Space)
SESTINA_INSTANTIATE_LANES(SESTINA_MOVE)

}  // namespace sestina
