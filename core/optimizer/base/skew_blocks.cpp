#include "core/optimizer/base/skew_blocks.hpp"

#include "kernels/model/cayley_neumann.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {

template <class Space>
void step_skew_block(Stream<Space>& stream, MatrixOptimizer<Space>& optimizer, const UpdateNumbers& numbers,
                     const OwnedMatrix<Space>& packed, std::size_t b) {
  const auto frame = stream.workspace.frame();
  const SkewScratch<Space> whole(stream.workspace, b);
  const Vector<float, Space> theta = flat<float, Space>(packed.master);
  unpack_skew<Space, float>(stream.exec, flat<const float, Space>(packed.gradient), whole.gradient);
  unpack_skew<Space, float>(stream.exec, theta, whole.q);
  optimizer.step(stream, numbers, {packed.name, whole.gradient, whole.q, {}});
  pack_skew<Space, float>(stream.exec, whole.q, false, theta);
  scale_values<Space>(stream.exec, 0.5, theta);
}

#define SESTINA_SKEW_STEP(Space)                                                                      \
  template void step_skew_block<Space>(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, \
                                       const OwnedMatrix<Space>&, std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_SKEW_STEP)

}  // namespace sestina
