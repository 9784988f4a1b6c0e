#include "core/optimizer/methods/adam.hpp"

#include <cmath>

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {

void AdamOptions::fields(OptionFields& f) {
  f.number("beta1", beta1, below_one);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  f.only("decay_order", "before");
}

namespace {

template <class Space>
class Adam final : public MatrixOptimizer<Space> {
 public:
  Adam(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : options_(options.as<AdamOptions>()),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        momentum_(state_.vector("momentum")),
        second_moment_(state_.vector("second_moment")),
        updates_(state_.counter("updates")) {}

  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions&, std::size_t rows, std::size_t cols) {
    declare<MatrixScratch<Space>>(workspace, rows, cols);
  }

  // With bias corrections bc1 and bc2, (m / bc1) / (sqrt(v / bc2) + eps) is sqrt(bc2) / bc1 times
  // m / (sqrt(v) + eps sqrt(bc2)).
  void step(Stream<Space>& stream, const UpdateNumbers& now, const OwnedMatrix<Space>& matrix) override {
    const auto frame = stream.workspace.frame();
    const auto count = static_cast<double>(++updates_);
    const double bc1 = 1 - std::pow(options_.beta1, count), bc2 = 1 - std::pow(options_.beta2, count);
    const auto direction = MatrixScratch<Space>(stream.workspace, matrix.rows(), matrix.cols()).values;
    adam_direction<Space>(stream.exec, {options_.beta1, options_.beta2, options_.eps * std::sqrt(bc2)},
                          now.gradient_scale, flat<const float, Space>(matrix.gradient), momentum_, second_moment_,
                          flat<float, Space>(direction));
    move_weight<Space, float>(stream.exec, {now.lr, std::sqrt(bc2) / bc1, now.weight_decay, true, stream.nonfinite},
                              flat<const float, Space>(Matrix<const float, Space>(direction)),
                              flat<float, Space>(matrix.master), flat<bf16, Space>(matrix.weight));
  }

  MatrixState<Space>& state() override { return state_; }

 private:
  AdamOptions options_;
  MatrixState<Space> state_;
  Vector<float, Space> momentum_, second_moment_;
  std::int64_t& updates_;
};

MatrixKind adam_kind() {
  MatrixKind kind = matrix_kind<AdamOptions>("adam");
  kind.state = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) {
    return std::vector<FieldSize>{
        {"momentum", DType::f32, rows, cols}, {"second_moment", DType::f32, rows, cols}, {"updates", DType::i64, 1, 1}};
  };
  kind.width_power = [](const MatrixOptions&) { return std::optional(1.0); };
  return kind;
}

}  // namespace

void register_adam() { register_matrix_kind<Adam>(adam_kind()); }

}  // namespace sestina
