#include "kernels/optimizer/weight_mean.hpp"

#include "kernels/base/error.hpp"
#include "kernels/blas/matrix_passes.hpp"

namespace sestina {

template <class Exec, class A>
void follow_weights(const Exec& exec, Vector<const A, Exec> weights, double tau, Vector<A, Exec> mean) {
  SESTINA_REQUIRE(weights.extent(0) == mean.extent(0), "{} weights, a mean of {}", weights.extent(0), mean.extent(0));
  const A share = A(1 / tau);
  for_elements(
      "follow_weights", exec, 1, mean.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) mean(i) += share * (weights(i) - mean(i));
      });
}

template <class Exec, class A>
void swap_values(const Exec& exec, Vector<A, Exec> x, Vector<A, Exec> y) {
  SESTINA_REQUIRE(x.extent(0) == y.extent(0), "{} and {} values", x.extent(0), y.extent(0));
  for_elements(
      "swap_values", exec, 1, x.extent(0), KOKKOS_LAMBDA(std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) {
          const A kept = x(i);
          x(i) = y(i);
          y(i) = kept;
        }
      });
}

#define SESTINA_FOLLOW_WEIGHTS(Exec) \
  template void follow_weights<Exec, float>(const Exec&, Vector<const float, Exec>, double, Vector<float, Exec>);
SESTINA_INSTANTIATE_SPACES(SESTINA_FOLLOW_WEIGHTS)
#define SESTINA_SWAP_VALUES(Exec, A) template void swap_values<Exec, A>(const Exec&, Vector<A, Exec>, Vector<A, Exec>);
#define SESTINA_SWAP_SPACES(Exec) SESTINA_SWAP_VALUES(Exec, float) SESTINA_SWAP_VALUES(Exec, double)
SESTINA_INSTANTIATE_SPACES(SESTINA_SWAP_SPACES)
SESTINA_SWAP_VALUES(Serial, float)

}  // namespace sestina
