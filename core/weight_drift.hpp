// How far the weights have moved since the version that a delayed pass used: |newest - used| / |newest| over all
// trained tensors of a stage, in sums that no number of threads changes.
#pragma once
#include "core/weight_versions.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

// Sums of squares over what one rank counts, see TensorHolding; those of a tensor-parallel group are added up.
struct WeightDrift {
  double moved = 0, weight = 0;
};

template <class Exec, class T>
class DriftMeter {
 public:
  explicit DriftMeter(const Arena<Exec, T>&);
  // The newest weights, complete on this rank, next to a version that is held. Fences.
  WeightDrift from(const Exec&, const WeightVersions<Exec, T>&, std::int64_t version);

 private:
  Arena<Exec, T> arena_;
  HostValues<Exec> sums_;  // by tensor and piece: moved, and as many after them: weight
};

}  // namespace sestina
