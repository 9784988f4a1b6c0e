#include "kernels/optimizer/matrix_update.hpp"

#include "kernels/optimizer/finite_flag.hpp"

namespace sestina {
namespace {

// Elements per thread at a time.
template <class Space>
constexpr std::size_t grain = is_host<Space> ? 8192 : 1;

template <class TU>
KOKKOS_INLINE_FUNCTION void move_range(const MoveFactors& f, std::size_t n, const TU* __restrict direction,
                                       float* __restrict master, bf16* __restrict weight) {
  for (std::size_t i = 0; i < n; ++i)
    master[i] = f.after * (f.before * master[i] - f.step * static_cast<float>(direction[i]));
  flag_nonfinite(n, master, f.nonfinite);
  if (weight == nullptr) return;
  for (std::size_t i = 0; i < n; ++i) weight[i] = bf16(master[i]);
}

}  // namespace

template <class Space, class TU>
void move_weight(const Space& exec, const WeightMove& move, Vector<const TU, Space> direction,
                 Vector<float, Space> master, Vector<bf16, Space> weight, Vector<const double, Space> factor) {
  const std::size_t n = master.extent(0);
  SESTINA_REQUIRE(direction.extent(0) == n && (weight.extent(0) == n || weight.extent(0) == 0),
                  "direction of {}, master {}, weight {}", direction.extent(0), n, weight.extent(0));
  constexpr std::size_t length = grain<Space>;
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
#define SESTINA_MOVE(Space) SESTINA_MOVE_TYPE(Space, float) SESTINA_MOVE_TYPE(Space, bf16)
SESTINA_INSTANTIATE_LANES(SESTINA_MOVE)

}  // namespace sestina
