#include "core/optimizer/base/skew_blocks.hpp"

#include "kernels/model/cayley_neumann.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {

template <class Space>
void step_skew_block(Lane<Space>& lane, MatrixOptimizer<Space>& optimizer, const UpdateNumbers& numbers,
                     const OwnedMatrix<Space>& packed, std::size_t b) {
  const auto frame = lane.workspace.frame();
  const Matrix<float, Space> gradient = lane.workspace.template take<float>(b, b);
  const Matrix<float, Space> q = lane.workspace.template take<float>(b, b);
  const Vector<float, Space> theta = flat<float, Space>(packed.master);
  unpack_skew<Space, float>(lane.exec, flat<const float, Space>(packed.gradient), gradient);
  unpack_skew<Space, float>(lane.exec, theta, q);
  optimizer.step(lane, numbers, {packed.name, gradient, q, {}});
  pack_skew<Space, float>(lane.exec, q, false, theta);
  scale_values<Space>(lane.exec, 0.5, theta);
}

#define SESTINA_SKEW_STEP(Space)                                                                    \
  template void step_skew_block<Space>(Lane<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, \
                                       const OwnedMatrix<Space>&, std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_SKEW_STEP)

}  // namespace sestina
