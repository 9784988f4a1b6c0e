#include "core/optimizer/methods/kl/kl_soap.hpp"

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/kl/kl_updates.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

void KlSoapOptions::fields(OptionFields& f) {
  KlOptions::fields(f);
  f.number("beta2", beta2, below_one);
}

namespace {

template <class Space>
class KlSoapUpdates final : public KlUpdates<Space> {
 public:
  KlSoapUpdates(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items)
      : KlUpdates<Space>({options.as<KlSoapOptions>(), options}, options.as<KlSoapOptions>().beta2, items) {}
  static bool declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, bool /*computes_bf16*/,
                              std::size_t rows, std::size_t cols) {
    return KlUpdates<Space>::declare_in_batch(workspace, options, {options.as<KlSoapOptions>(), options}, rows, cols);
  }
};

// KL-SOAP, whose momentum stays in the original basis.
template <class Space>
class KlSoap final : public KlMethod<Space> {
 public:
  using Batch = KlSoapUpdates<Space>;

  KlSoap(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : KlMethod<Space>(exec, options, {options.as<KlSoapOptions>(), options}, shape),
        beta2_(options.as<KlSoapOptions>().beta2),
        second_moment_(this->state_.matrix("second_moment")) {}
  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    declare_kl_update<Space>(workspace, options, {options.as<KlSoapOptions>(), options}, rows, cols);
  }

 private:
  // The gradient is rotated once, for the second moment and for the factors; the bases change at a refresh only.
  void update(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix,
              const typename KlFactors<Space>::Roots& roots, Matrix<float, Space> half,
              Matrix<float, Space> rotated) override {
    this->factors_.rotate(stream, now.gradient_scale, matrix.gradient, half, rotated);
    average_squares<Space>(stream.exec, beta2_, flat<float, Space>(rotated), flat<float, Space>(second_moment_));
    this->factors_.accumulate(stream, now.gradient_scale, roots, matrix.gradient, half, rotated);
    this->rotate_momentum(stream, now.gradient_scale, matrix.gradient, half, rotated);
    divide_by_root<Space>(stream.exec, this->rule_.eps, flat<float, Space>(second_moment_),
                          flat<float, Space>(rotated));
    this->move(stream, now, matrix, rotated, half);
  }
  Matrix<float, Space> second_moment() const override { return second_moment_; }

  double beta2_;
  Matrix<float, Space> second_moment_;
};

MatrixKind kl_soap_kind() {
  MatrixKind kind = matrix_kind<KlSoapOptions>("kl-soap");
  fill_kl_kind(kind, true);
  kind.max_dim = [](const MatrixOptions& options) { return options.as<KlSoapOptions>().max_dim; };
  kind.refresh_needs = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return two_sided_needs(options, {}, KlRule(options.as<KlSoapOptions>(), options).refresh, rows, cols);
  };
  kind.stated_flops = stated_rotation;
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return kl_work(options.as<KlSoapOptions>().basis_first, rows, cols, 11);
  };
  return kind;
}

}  // namespace

void register_kl_soap() { register_matrix_kind<KlSoap>(kl_soap_kind()); }

}  // namespace sestina
