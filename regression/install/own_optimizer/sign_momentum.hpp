// Sign of the momentum: M = beta M + (1 - beta) G, W -= lr (sign(M) + weight_decay W). What a matrix optimizer must
// have: its keys, its row (sign_momentum_kind) and a class with the order of its step, for every space.
#pragma once
#include "sestina/core/optimizer/base/matrix_optimizer.hpp"

struct SignMomentumOptions {
  double beta = 0.9;
  void fields(sestina::OptionFields& f) { f.number("beta", beta, {.min = 0, .max = 1, .open_max = true}); }
};

inline std::vector<sestina::FieldSize> sign_momentum_state(const sestina::MatrixOptions&, std::int64_t rows,
                                                           std::int64_t cols) {
  return {{"momentum", sestina::DType::f32, rows, cols}};
}

inline sestina::MatrixKind sign_momentum_kind() {
  sestina::MatrixKind kind = sestina::matrix_kind<SignMomentumOptions>("sign-momentum");
  kind.state = sign_momentum_state;
  return kind;
}

template <class Space>
class SignMomentum : public sestina::MatrixOptimizer<Space> {
 public:
  SignMomentum(const Space& exec, const sestina::MatrixOptions& options, const sestina::MatrixShape& shape)
      : beta_(static_cast<float>(options.as<SignMomentumOptions>().beta)),
        state_(
            exec,
            sign_momentum_state(options, static_cast<std::int64_t>(shape.rows), static_cast<std::int64_t>(shape.cols)),
            shape.path) {}

  // An update takes nothing of the stream's workspace.
  static void declare_scratch(sestina::Workspace<Space>&, const sestina::MatrixOptions&, std::size_t, std::size_t) {}

  void step(sestina::Stream<Space>& stream, const sestina::UpdateNumbers& now,
            const sestina::OwnedMatrix<Space>& matrix) override {
    const auto momentum = state_.matrix("momentum");
    const auto gradient = matrix.gradient;
    const auto master = matrix.master;
    const auto weight = matrix.weight;  // (0, 0) where the model computes with the master weights
    const bool copy = weight.extent(0) > 0;
    const float beta = beta_, scale = static_cast<float>(now.gradient_scale), lr = static_cast<float>(now.lr),
                decay = static_cast<float>(now.weight_decay);
    Kokkos::parallel_for(
        "sign_momentum",
        Kokkos::MDRangePolicy<Space, Kokkos::Rank<2>>(stream.exec, {0, 0}, {matrix.rows(), matrix.cols()}),
        KOKKOS_LAMBDA(std::size_t i, std::size_t j) {
          const float m = beta * momentum(i, j) + (1 - beta) * scale * gradient(i, j);
          const float sign = m > 0 ? 1.0f : m < 0 ? -1.0f : 0.0f;
          momentum(i, j) = m;
          master(i, j) -= lr * (sign + decay * master(i, j));
          if (copy) weight(i, j) = sestina::bf16(master(i, j));
        });
  }
  sestina::MatrixState<Space>& state() override { return state_; }

 private:
  float beta_;
  sestina::MatrixState<Space> state_;
};
