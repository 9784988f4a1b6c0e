// The last pass of every matrix optimizer: decay, the movement, and the rounded copy, reading everything once.
#pragma once
#include "kernels/exec.hpp"

namespace sestina {

struct WeightMove {
  double lr = 0;     // of this matrix now; decay uses it unscaled
  double scale = 1;  // the movement is lr * scale * direction
  double weight_decay = 0;
  bool decay_first = true;  // W = (1 - lr wd) W - lr s U; false: W = (1 - lr wd) (W - lr s U)
};

// direction (n) float or bf16, master (n), weight (n) or empty: the rounded master weight.
template <class Space, class TU>
void move_weight(const Space&, const WeightMove&, Vector<const TU, Space> direction, Vector<float, Space> master,
                 Vector<bf16, Space> weight);

}  // namespace sestina
