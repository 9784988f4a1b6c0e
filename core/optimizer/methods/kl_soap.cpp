#include "core/optimizer/methods/kl_factors.hpp"
#include "kernels/optimizer/rotated_adam.hpp"

namespace sestina {
namespace {

// The bases of KL-Shampoo, and in them Adam without bias correction. The momentum stays in the original basis.
template <class Space>
class KlSoap final : public KlMethod<Space> {
 public:
  KlSoap(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : KlMethod<Space>(exec, options, shape),
        beta2_(options.number("beta2")),
        second_moment_(this->state_.matrix("second_moment")) {}

 private:
  // The gradient is rotated once, for the second moment and for the factors; the bases change at a refresh only.
  void update(Lane<Space>& lane, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix,
              const typename KlFactors<Space>::Roots& roots, Matrix<float, Space> half,
              Matrix<float, Space> rotated) override {
    this->factors_.rotate(lane, now.gradient_scale, matrix.gradient, half, rotated);
    average_squares<Space>(lane.exec, beta2_, flat<float, Space>(rotated), flat<float, Space>(second_moment_));
    this->factors_.accumulate(lane, now.gradient_scale, roots, matrix.gradient, half, rotated);
    this->rotate_momentum(lane, now.gradient_scale, matrix.gradient, half, rotated);
    divide_by_root<Space>(lane.exec, this->rule_.eps, flat<float, Space>(second_moment_), flat<float, Space>(rotated));
    this->move(lane, now, matrix, rotated, half);
  }
  Matrix<float, Space> second_moment() const override { return second_moment_; }

  double beta2_;
  Matrix<float, Space> second_moment_;
};

}  // namespace

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_kl_soap(const Space& exec, const MatrixOptions& options,
                                                     const MatrixShape& shape) {
  return std::make_unique<KlSoap<Space>>(exec, options, shape);
}

template <class Space>
std::size_t scratch_kl_soap(const MatrixOptions& options, std::size_t rows, std::size_t cols) {
  return kl_scratch_bytes<Space>(options, rows, cols);
}

#define SESTINA_KL_SOAP(Space)                                                                             \
  template std::size_t scratch_kl_soap<Space>(const MatrixOptions&, std::size_t, std::size_t);             \
  template std::unique_ptr<MatrixOptimizer<Space>> make_kl_soap<Space>(const Space&, const MatrixOptions&, \
                                                                       const MatrixShape&);
SESTINA_INSTANTIATE_LANES(SESTINA_KL_SOAP)

}  // namespace sestina
