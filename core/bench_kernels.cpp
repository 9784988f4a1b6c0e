#include <cmath>

#include "core/benches.hpp"
#include "core/dispatch.hpp"
#include "core/layout/model_size.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/machine_speed.hpp"
#include "core/stage_values.hpp"
#include "kernels/base/threads.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/attention.hpp"
#include "kernels/model/loss.hpp"
#include "kernels/model/norm.hpp"
#include "kernels/optimizer/adamw.hpp"

namespace sestina {
namespace {

// Times kernels on buffers of its own; every buffer holds small numbers, so that no kernel meets denormals.
template <class Exec, class T>
class KernelBench {
 public:
  using A = Acc<T>;
  KernelBench(const Exec& exec, const Options& options, const BenchRounds& rounds)
      : exec_(exec), config_(options.model), rounds_(rounds), gemm_(exec, options.run.deterministic) {
    batch_ = pass_options(options).micro_batch;
    sequence_ = options.data.sequence_length;
    rows_ = static_cast<std::size_t>(batch_) * static_cast<std::size_t>(sequence_);
  }

  std::vector<KernelTime> run() {
    const auto D = width(config_.hidden_size), F = width(mlp_width(config_)), Q = width(config_.query_width()),
               K = width(config_.key_value_width());
    wide_linear("q, k, v", D, Q + 2 * K);
    linear("o", Q, D);
    if (F > 0) {
      wide_linear(config_.gated() ? "gate, up" : "up", D, width(up_width(config_)));
      linear("down", F, D);
    }
    if (config_.has_experts()) experts(D, width(config_.moe_intermediate_size));
    wide_linear("head", D, width(config_.vocab_size));
    attention_rows(Q, K);
    row_kernels(D, Q);
    if (config_.has_experts())
      swiglu_rows(choices(), width(config_.moe_intermediate_size));
    else
      swiglu_rows(rows_, F);
    adamw_row();
    return result_;
  }

 private:
  template <class S>
  using Buffer = Kokkos::View<S*, typename Exec::memory_space>;
  static std::size_t width(std::int64_t n) { return static_cast<std::size_t>(n); }

  template <class S>
  Buffer<S> buffer(std::size_t n, float value = 0.01f) const {
    Buffer<S> b(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::bench"), n);
    Kokkos::deep_copy(b, S(value));
    return b;
  }
  template <class S>
  Matrix<S, Exec> matrix(const Buffer<S>& b, std::size_t cols) const {
    return Matrix<S, Exec>(b.data(), b.size() / cols, cols);
  }

  template <class Function>
  void time(const std::string& name, double flops, double bytes, Function&& kernel) {
    std::vector<double> seconds;
    for (int i = 0; i < rounds_.warmup; ++i) kernel();
    exec_.fence();
    for (int i = 0; i < rounds_.steps; ++i) {
      const double start = now_seconds();
      kernel();
      exec_.fence();
      seconds.push_back(now_seconds() - start);
    }
    result_.push_back({name, median(seconds), flops, bytes});
  }

  std::size_t choices() const { return rows_ * width(config_.num_experts_per_tok); }
  // Times the products of one expert that has the mean number of rows.
  void experts(std::size_t in, std::size_t inner) {
    const std::size_t rows = std::max<std::size_t>(1, choices() / width(config_.num_experts));
    linear("expert gate, up", in, 2 * inner, rows, 2 * inner);
    linear("expert down", inner, in, rows, in);
  }

  void linear(const std::string& name, std::size_t in, std::size_t out) { linear(name, in, out, rows_, out); }
  // Of one whose output is a wide activation of the model.
  void wide_linear(const std::string& name, std::size_t in, std::size_t out) {
    linear(name, in, out, rows_, width(row_stride(static_cast<std::int64_t>(out))));
  }
  // Times the three products of a linear layer: y = x W^T, dx = dy W, dW = dy^T x; rows of y are `stride` apart.
  void linear(const std::string& name, std::size_t in, std::size_t out, std::size_t rows, std::size_t stride) {
    const auto x = buffer<T>(rows * in), w = buffer<T>(in * out), storage = buffer<T>(rows * stride);
    const Matrix<T, Exec> y =
        Kokkos::subview(matrix(storage, stride), Kokkos::ALL, std::pair<std::size_t, std::size_t>(0, out));
    const auto dw = buffer<A>(in * out);
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
    time(name + ": forward", flops, 0,
         [&] { gemm_.template operator()<T, T>(Op::none, Op::transpose, 1, matrix(x, in), matrix(w, in), 0, y); });
    time(name + ": input gradient", flops, 0,
         [&] { gemm_.template operator()<T, T>(Op::none, Op::none, 1, y, matrix(w, in), 0, matrix(x, in)); });
    time(name + ": weight gradient", flops, 0,
         [&] { gemm_.template operator()<T, A>(Op::transpose, Op::none, 1, y, matrix(x, in), 0, matrix(dw, in)); });
  }

  void attention_rows(std::size_t Q, std::size_t K) {
    const AttentionShape shape{batch_,
                               sequence_,
                               static_cast<int>(config_.num_attention_heads),
                               static_cast<int>(config_.num_key_value_heads),
                               static_cast<int>(config_.head_dim),
                               1.0 / std::sqrt(static_cast<double>(config_.head_dim))};
    Workspace<Exec> workspace(bytes_taken<Exec>([&](auto& counter) { declare_attention<T>(counter, exec_, shape); }));
    const auto q = buffer<T>(rows_ * Q), k = buffer<T>(rows_ * K), v = buffer<T>(rows_ * K), out = buffer<T>(rows_ * Q),
               dout = buffer<T>(rows_ * Q);
    const auto dq = buffer<T>(rows_ * Q), dk = buffer<T>(rows_ * K), dv = buffer<T>(rows_ * K);
    const auto lse = buffer<A>(rows_ * width(config_.num_attention_heads));
    const double pair =
        2.0 * static_cast<double>(rows_) * sequence_ / 2 * static_cast<double>(Q);  // one causal product of scores
    time("attention: forward", 2 * pair, 0, [&] {
      attention<Exec, T>(exec_, shape, matrix(q, Q), matrix(k, K), matrix(v, K), {}, matrix(out, Q), lse, workspace);
    });
    time("attention: backward", 5 * pair, 0, [&] {
      attention_backward<Exec, T>(exec_, shape, matrix(dout, Q), matrix(q, Q), matrix(k, K), matrix(v, K), {},
                                  matrix(out, Q), lse, matrix(dq, Q), matrix(dk, K), matrix(dv, K), workspace);
    });
  }

  void swiglu_rows(std::size_t rows, std::size_t F) {
    const double elements = static_cast<double>(rows) * static_cast<double>(F), element = sizeof(T);
    const auto up = buffer<T>(rows * 2 * F), activated = buffer<T>(rows * F);
    time("SwiGLU: forward", 0, 3 * elements * element,
         [&] { swiglu<Exec, T>(exec_, matrix(up, 2 * F), matrix(activated, F)); });
    time("SwiGLU: backward", 0, 6 * elements * element, [&] {
      swiglu_backward<Exec, T>(exec_, matrix(activated, F), matrix(up, 2 * F), matrix(up, 2 * F), matrix(activated, F));
    });
  }

  void row_kernels(std::size_t D, std::size_t Q) {
    const double n = static_cast<double>(rows_), element = sizeof(T);
    Workspace<Exec> workspace(bytes_of<NormScratch<Exec, T>, Exec>(rows_, D));
    const auto x = buffer<T>(rows_ * D), branch = buffer<T>(rows_ * D), y = buffer<T>(rows_ * D);
    const auto weight = buffer<A>(D), dweight = buffer<A>(D), inverse = buffer<A>(rows_);
    time("residual, RMSNorm: forward", 0, 4 * n * static_cast<double>(D) * element, [&] {
      add_rms_norm<Exec, T>(exec_, matrix(x, D), matrix(branch, D), weight, 1e-5, matrix(x, D), matrix(y, D), inverse);
    });
    time("RMSNorm: backward", 0, 4 * n * static_cast<double>(D) * element, [&] {
      rms_norm_backward<Exec, T>(exec_, matrix(y, D), matrix(x, D), weight, inverse, matrix(branch, D), matrix(y, D),
                                 Vector<Acc<T>, Exec>(dweight), workspace);
    });
    const auto q = buffer<T>(rows_ * Q);
    const auto half = width(config_.head_dim / 2);
    const auto table = buffer<float>(static_cast<std::size_t>(sequence_) * half, 0.7f);
    time("rotary", 0, 2 * n * static_cast<double>(Q) * element,
         [&] { rope<Exec, T>(exec_, matrix(table, half), matrix(table, half), sequence_, 1, matrix(q, Q)); });
    const std::size_t V = width(config_.vocab_size),
                      slice = std::max<std::size_t>(1, std::min(rows_, (std::size_t{64} << 20) / (V * sizeof(T))));
    const auto logits = buffer<T>(slice * V);
    const auto target = Buffer<std::int32_t>("sestina::bench", slice);
    const auto loss = buffer<A>(slice);
    time(fmt::format("loss of {} rows", slice), 0, 3 * static_cast<double>(slice * V) * element,
         [&] { softmax_cross_entropy<Exec, T>(exec_, target, A(1e-3), true, matrix(logits, V), loss); });
  }

  void adamw_row() {
    constexpr std::size_t block = 256;  // columns; each row is one
    const std::size_t rows = std::min<std::size_t>(width(parameter_count(config_)), std::size_t{64} << 20) / block,
                      n = rows * block;
    const auto g = buffer<A>(n), w = buffer<A>(n), m = buffer<A>(n), v = buffer<A>(n);
    const auto rounded = buffer<T>(std::is_same_v<T, A> ? 0 : n);
    const double others = 3 * sizeof(A) + (std::is_same_v<T, A> ? 0 : sizeof(T)), wide = 4 * sizeof(A),
                 narrow = 4 * (1 + sizeof(float) / double(block));
    const std::string name = fmt::format("AdamW of {:.1f} M", static_cast<double>(n) * 1e-6);
    const AdamWStep step{.lr = 1e-3};
    time(name, 0, static_cast<double>(n) * (others + wide), [&] {
      adamw<Exec, T>(exec_, step, element_run<Exec, T>(g, w, rounded, {m, v}));
    });
    const auto codes = buffer<std::uint8_t>(2 * n);
    const auto scales = buffer<float>(2 * rows);
    const CodedMoments<Exec> moments{block, Matrix<std::uint8_t, Exec>(codes.data(), rows, block),
                                     Matrix<std::uint8_t, Exec>(codes.data() + n, rows, block),
                                     Matrix<float, Exec>(scales.data(), rows, 1),
                                     Matrix<float, Exec>(scales.data() + rows, rows, 1)};
    time(name + ", moments in 8 bits", 0, static_cast<double>(n) * (others + narrow),
         [&] { adamw<Exec, T>(exec_, step, coded_run<Exec, T>(g, w, rounded, moments)); });
  }

  std::vector<KernelTime> result_;
  Exec exec_;
  ModelConfig config_;
  BenchRounds rounds_;
  Gemm<Exec> gemm_;
  int batch_ = 0, sequence_ = 0;
  std::size_t rows_ = 0;
};

}  // namespace

std::vector<KernelTime> bench_kernels(const Options& options, const BenchRounds& rounds) {
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    return KernelBench<std::decay_t<decltype(exec)>, typename decltype(tag)::type>(exec, options, rounds).run();
  });
}

}  // namespace sestina
