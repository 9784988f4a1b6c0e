// EMA-Nesterov (Yau et al. 2026, arXiv 2605.25395; train.lookahead), around whatever makes an update. Before the passes
// of update t the weights of the last one move on, w = w + b d, where d is the mean of their displacements; the update
// steps from there; then d = lerp(d, w - w before the move, 1 - ema). b = factor times the learning rate over its peak
// for from < t <= until, else 0. The move stays in the weights: between updates they are those after the update,
// without a move, and these are evaluated, saved and exported. d is state like that of an optimizer, field
// "displacement" (weight_runs.hpp).
#pragma once
#include <vector>

#include "core/deck/options.hpp"
#include "core/optimizer/weight_runs.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

template <class Exec>
class Lookahead {
 public:
  // weights: as for weight_runs(), all that are trained; their memory must outlive this.
  Lookahead(const Exec&, std::vector<StateField> weights, const LookaheadOptions&);

  // Returns whether weights move on before the passes of update t.
  bool moves(std::int64_t t) const { return options_.from < t && t <= options_.until; }
  // Called before these: the learning rate of the update has this factor of its peak.
  void begin(const Exec&, std::int64_t t, double rate_factor);
  // Called after update t: takes in the displacement.
  void end(const Exec&, std::int64_t t);
  // Called in its place where the update is refused: undoes the move. Returns whether there was one.
  bool withdraw(const Exec&);

  std::vector<StateField> fields() const { return fields_of_weights(weights_, means_.data(), "displacement"); }

 private:
  using View = Kokkos::View<float*, typename Exec::memory_space>;
  Vector<float, Exec> of(const View& numbers, const WeightRun& run) const {
    return Vector<float, Exec>(numbers.data() + run.at, run.count);
  }

  std::vector<StateField> weights_;
  LookaheadOptions options_;
  std::vector<WeightRun> runs_;
  View means_, kept_;  // of all weights, one after the other; kept_: weights before the move
  bool moved_ = false;
};

}  // namespace sestina
