#include "core/optimizer/base/skew_blocks.hpp"

#include "kernels/model/cayley_neumann.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {

template <class Space>
void step_skew_block(Stream<Space>& stream, MatrixOptimizer<Space>& optimizer, const UpdateNumbers& numbers,
                     const OwnedMatrix<Space>& packed, std::size_t b) {
  const auto frame = stream.workspace.frame();
  const Matrix<float, Space> gradient = stream.workspace.template take<float>(b, b);
  const Matrix<float, Space> q = stream.workspace.template take<float>(b, b);
  const Vector<float, Space> theta = flat<float, Space>(packed.master);
  unpack_skew<Space, float>(stream.exec, flat<const float, Space>(packed.gradient), gradient);
  unpack_skew<Space, float>(stream.exec, theta, q);
  optimizer.step(stream, numbers, {packed.name, gradient, q, {}});
  pack_skew<Space, float>(stream.exec, q, false, theta);
  scale_values<Space>(stream.exec, 0.5, theta);
}

#define SESTINA_SKEW_STEP(Space)                                                                      \
  template void step_skew_block<Space>(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, \
                                       const OwnedMatrix<Space>&, std::size_t);
SESTINA_INSTANTIATE_LANES(SESTINA_SKEW_STEP)

}  // namespace sestina
