#include "core/optimizer/methods/kl_factors.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {
namespace {

template <class Space>
class KlShampoo final : public KlMethod<Space> {
 public:
  using KlMethod<Space>::KlMethod;

 private:
  // The weight moves first: the factors take the gradient in with the bases and eigenvalues that it was moved with.
  void update(Lane<Space>& lane, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix,
              const typename KlFactors<Space>::Roots& roots, Matrix<float, Space> half,
              Matrix<float, Space> rotated) override {
    this->rotate_momentum(lane, now.gradient_scale, matrix.gradient, half, rotated);
    scale_damped<Space>(lane.exec, this->rule_.eps, roots.left, roots.right, rotated);
    this->move(lane, now, matrix, rotated, half);
    this->factors_.rotate(lane, now.gradient_scale, matrix.gradient, half, rotated);
    this->factors_.accumulate(lane, now.gradient_scale, roots, matrix.gradient, half, rotated);
  }
};

}  // namespace

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_kl_shampoo(const Space& exec, const MatrixOptions& options,
                                                        const MatrixShape& shape) {
  return std::make_unique<KlShampoo<Space>>(exec, options, shape);
}

template <class Space>
std::size_t scratch_kl_shampoo(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  return kl_scratch_bytes<Space>(options, rows, cols);
}

#define SESTINA_KL_SHAMPOO(Space)                                                                             \
  template std::size_t scratch_kl_shampoo<Space>(const MatrixOptions&, std::size_t, std::size_t);             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_kl_shampoo<Space>(const Space&, const MatrixOptions&, \
                                                                          const MatrixShape&);
SESTINA_INSTANTIATE_LANES(SESTINA_KL_SHAMPOO)

}  // namespace sestina
