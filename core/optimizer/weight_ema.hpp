// An exponential mean of the weights that a rank owns (train.ema_tau), for evaluation and export. It is state like that
// of an optimizer, field "ema" (weight_runs.hpp).
#pragma once
#include <vector>

#include "core/optimizer/weight_runs.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

template <class Exec>
class WeightEma {
 public:
  // weights: fields of fp32 weights ("/model/<HF name>"), whose memory must outlive this. tau >= 1, in updates. The
  // means are zero until they start.
  WeightEma(const Exec&, std::vector<StateField> weights, double tau);

  void start(const Exec&);  // sets the means to the weights as they are
  // Called after update t (from 1): the first one sets the means to the weights, later ones move them by 1 / tau.
  void follow(const Exec&, std::int64_t t);

  std::vector<StateField> fields() const;

 private:
  Vector<const float, Exec> weights_of(const WeightRun& run) const {
    return Vector<const float, Exec>(run.weights, run.count);
  }
  Vector<float, Exec> means_of(const WeightRun& run) const {
    return Vector<float, Exec>(means_.data() + run.at, run.count);
  }

  std::vector<StateField> weights_;
  double tau_;
  std::vector<WeightRun> runs_;
  Kokkos::View<float*, typename Exec::memory_space> means_;  // of all weights, one after the other
};

}  // namespace sestina
