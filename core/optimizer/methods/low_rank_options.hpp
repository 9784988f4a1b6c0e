// The data that GaLore and APOLLO share: keys, sizes of the projected state, work. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"

namespace sestina {

struct LowRankOptions {
  std::int64_t rank = 0;  // 0: a quarter of the shorter side
  enum class Side : std::uint8_t { automatic, left, right } side = Side::automatic;
  double scale = 1;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-6;
  bool given = false;                // the projector is not renewed
  BasisForm form = BasisForm::gram;  // source of a projector, unless it is drawn at random
  std::int64_t projector_bits = 32, weight_bits = 32;
  Order decay_order = Order::after;

  bool has_coded_projector() const { return projector_bits < 32; }

 protected:
  // projectors: the words for the source of the projector, the default first, "given" last.
  void fields(OptionFields&, const std::vector<std::string>& projectors);
};

// The rank and side that the keys give a matrix.
struct LowRank {
  std::int64_t rank = 1;
  bool right = true;  // projects rows of G: R (m, r) = G P^T with P (r, n); else R (r, n) = P^T G with P (m, r)
  struct Size {
    std::size_t rows = 0, cols = 0;
  };
  Size small(std::size_t rows, std::size_t cols) const {  // R
    const auto r = static_cast<std::size_t>(rank);
    return right ? Size{rows, r} : Size{r, cols};
  }
  Size projector(std::size_t rows, std::size_t cols) const {  // P
    const auto r = static_cast<std::size_t>(rank);
    return right ? Size{r, cols} : Size{rows, r};
  }
};
// Elements of a projector in 8 or 4 bits that share a scale (kernels/model/quantise.hpp), as Q-GaLore has it.
inline constexpr std::size_t projector_group = 256;
inline constexpr std::int64_t lazy_window = 5;  // cosines of projectors that Q-GaLore looks back on
LowRank low_rank_of(const LowRankOptions&, std::int64_t rows, std::int64_t cols);
// Returns the projector (or its codes, followed by those of zero, and scales), momentum, second_moment and counters;
// block is that of moments in 8 bits.
std::vector<FieldSize> low_rank_fields(const LowRankOptions&, std::int64_t rows, std::int64_t cols,
                                       std::int64_t block = 0);

// Returns the FLOPs of projecting the gradient to rank r and back: 4 m n r.
double projection_work(const LowRank&, std::int64_t rows, std::int64_t cols);

// Checks either kind: collects errors for widths of projectors and weights that do not exist, and for what does not fit
// them. weight_bits = 8 chooses the form of the weights that follows from it.
void check_low_rank(Deck&, Options&, const LowRankOptions&);

}  // namespace sestina
