#include "core/optimizer/methods/kl/kl_shampoo.hpp"

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/kl/kl_updates.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {
namespace {

template <class Space>
class KlShampooUpdates final : public KlUpdates<Space> {
 public:
  KlShampooUpdates(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items)
      : KlUpdates<Space>({options.as<KlOptions>(), options}, std::nullopt, items) {}
  static bool declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, bool /*computes_bf16*/,
                              std::size_t rows, std::size_t cols) {
    return KlUpdates<Space>::declare_in_batch(workspace, options, {options.as<KlOptions>(), options}, rows, cols);
  }
};

template <class Space>
class KlShampoo final : public KlMethod<Space> {
 public:
  using Batch = KlShampooUpdates<Space>;

  KlShampoo(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : KlMethod<Space>(exec, options, {options.as<KlOptions>(), options}, shape) {}
  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    declare_kl_update<Space>(workspace, options, {options.as<KlOptions>(), options}, rows, cols);
  }

 private:
  // The weight moves first: the factors take the gradient in with the bases and eigenvalues that it was moved with.
  void update(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix,
              const typename KlFactors<Space>::Roots& roots, Matrix<float, Space> half,
              Matrix<float, Space> rotated) override {
    this->rotate_momentum(stream, now.gradient_scale, matrix.gradient, half, rotated);
    scale_damped<Space>(stream.exec, this->rule_.eps, roots.left, roots.right, rotated);
    this->move(stream, now, matrix, rotated, half);
    this->factors_.rotate(stream, now.gradient_scale, matrix.gradient, half, rotated);
    this->factors_.accumulate(stream, now.gradient_scale, roots, matrix.gradient, half, rotated);
  }
};

MatrixKind kl_shampoo_kind() {
  MatrixKind kind = matrix_kind<KlOptions>("kl-shampoo");
  fill_kl_kind(kind, false);
  kind.max_dim = [](const MatrixOptions& options) { return options.as<KlOptions>().max_dim; };
  kind.refresh_needs = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return two_sided_needs(options, {}, KlRule(options.as<KlOptions>(), options).refresh, rows, cols);
  };
  kind.stated_flops = stated_roots;
  // The work by side is 4 a^2 b for whitening, a^2 b for a factor of the estimate, 4 a^2 b for the direction.
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return kl_work(options.as<KlOptions>().basis_first, rows, cols, 9);
  };
  return kind;
}

}  // namespace

void register_kl_shampoo() { register_matrix_kind<KlShampoo>(kl_shampoo_kind()); }

}  // namespace sestina
