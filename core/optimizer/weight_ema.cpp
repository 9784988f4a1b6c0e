#include "core/optimizer/weight_ema.hpp"

#include <utility>

#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/element_rules.hpp"

namespace sestina {

template <class Exec>
WeightEma<Exec>::WeightEma(const Exec& exec, std::vector<StateField> weights, double tau)
    : weights_(std::move(weights)),
      tau_(tau),
      runs_(weight_runs(weights_)),
      means_(Kokkos::view_alloc(exec, "sestina::ema"), weight_count(runs_)) {}

template <class Exec>
void WeightEma<Exec>::start(const Exec& exec) {
  for (const WeightRun& run : runs_) convert<Exec, float, float>(exec, weights_of(run), means_of(run));
}

template <class Exec>
void WeightEma<Exec>::follow(const Exec& exec, std::int64_t t) {
  if (t == 1) return start(exec);
  for (const WeightRun& run : runs_) follow_weights<Exec, float>(exec, weights_of(run), tau_, means_of(run));
}

template <class Exec>
std::vector<StateField> WeightEma<Exec>::fields() const {
  return fields_of_weights(weights_, means_.data(), "ema");
}

#define SESTINA_WEIGHT_EMA(Exec) template class WeightEma<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_WEIGHT_EMA)

}  // namespace sestina
