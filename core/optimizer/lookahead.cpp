#include "core/optimizer/lookahead.hpp"

#include <utility>

#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/element_rules.hpp"

namespace sestina {

template <class Exec>
Lookahead<Exec>::Lookahead(const Exec& exec, std::vector<StateField> weights, const LookaheadOptions& options)
    : weights_(std::move(weights)),
      options_(options),
      runs_(weight_runs(weights_)),
      means_(Kokkos::view_alloc(exec, "sestina::displacements"), weight_count(runs_)),
      kept_(Kokkos::view_alloc(exec, "sestina::kept_weights"), weight_count(runs_)) {}

template <class Exec>
void Lookahead<Exec>::begin(const Exec& exec, std::int64_t t, double rate_factor) {
  if (t > options_.until) return;  // nothing reads the means again
  moved_ = moves(t);
  const double share = moved_ ? options_.factor * rate_factor : 0;
  for (const WeightRun& run : runs_)
    look_ahead<Exec, float>(exec, Vector<float, Exec>(run.weights, run.count), share, of(means_, run), of(kept_, run));
}

template <class Exec>
void Lookahead<Exec>::end(const Exec& exec, std::int64_t t) {
  moved_ = false;
  if (t > options_.until) return;
  for (const WeightRun& run : runs_)
    follow_displacements<Exec, float>(exec, Vector<const float, Exec>(run.weights, run.count), of(kept_, run),
                                      options_.ema, of(means_, run));
}

template <class Exec>
bool Lookahead<Exec>::withdraw(const Exec& exec) {
  if (!moved_) return false;
  for (const WeightRun& run : runs_)
    convert<Exec, float, float>(exec, of(kept_, run), Vector<float, Exec>(run.weights, run.count));
  moved_ = false;
  return true;
}

#define SESTINA_LOOKAHEAD(Exec) template class Lookahead<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_LOOKAHEAD)

}  // namespace sestina
