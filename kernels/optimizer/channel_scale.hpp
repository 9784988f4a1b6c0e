// APOLLO's update (arXiv 2412.05270): the gradient, each channel (row or column) times a factor that a low-rank Adam
// gives, with a limit on how fast its norm may grow. The norm stays in the memory of the space: nothing fences.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

struct ChannelRule {
  double gradient_scale = 1;  // clipping
  double scale = 1;           // the update is multiplied by its square root,
  bool scale_front = false;   // before the limiter instead of after it
  bool per_tensor = false;    // one factor for all channels
  double norm_eps = 1e-8;
  double growth_limit = 1.01;  // of the norm of the update from one to the next; 0: none
  bool limited = true;         // false: there is no earlier norm
};

// From the sums of squares per channel (c) of the direction, of the projected clipped gradient it came from, and of
// the unclipped gradient: factors (c) by which the unclipped gradient is to be multiplied. update_norm (1): of the
// update, before a factor scale after the limiter; in and out.
template <class Space>
void channel_factors(const Space&, const ChannelRule&, Vector<const float, Space> direction,
                     Vector<const float, Space> projected, Vector<const float, Space> gradient,
                     Vector<float, Space> update_norm, Vector<float, Space> factors);

// W moves by the gradient with row i (by_row) or column i times factors[i]. weight as in move_weight, or (0, 0).
template <class Space>
void move_channels(const Space&, const WeightMove&, bool by_row, Vector<const float, Space> factors,
                   Matrix<const float, Space> gradient, Matrix<float, Space> master, Matrix<bf16, Space> weight);

}  // namespace sestina
