// Kernels by themselves, forward and backward as one, in fp32: those between the products of a step, and two of
// updates.
#include <cmath>
#include <memory>

#include "kernels/base/random.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/model/activation.hpp"
#include "kernels/model/attention.hpp"
#include "kernels/model/loss.hpp"
#include "kernels/model/norm.hpp"
#include "kernels/optimizer/adamw.hpp"
#include "kernels/optimizer/newton_schulz.hpp"
#include "kernels/optimizer/newton_schulz_sets.hpp"
#include "regression/bench/speed_guard/speed_cases.hpp"

namespace sestina {
namespace {

// Enough rows that a call's start does not count; few enough that all rounds take a second under valgrind.
constexpr std::size_t case_rows = 128, case_width = 256;
constexpr int case_rounds = 10;  // one more is 10 %
using Values = Kokkos::View<float*, Host::memory_space>;
using Rows = Matrix<float, Host>;

// Normal numbers, so that no kernel meets denormals or takes a way for zeros.
Values case_values(std::size_t n, double deviation = 1) {
  Values values("speed case", n);
  normals(stream_of(1, "speed case"), 0, n, deviation, values.data());
  return values;
}
Rows as_rows(const Values& values, std::size_t cols) { return {values.data(), values.size() / cols, cols}; }

std::function<void()> attention_case() {
  constexpr std::size_t tokens = 64, heads = 2, key_heads = 1, width = 32, Q = heads * width, K = key_heads * width;
  const AttentionShape shape{
      1, static_cast<int>(tokens), heads, key_heads, width, 1.0 / std::sqrt(static_cast<double>(width))};
  const Host exec;
  const auto workspace = std::make_shared<Workspace<Host>>(
      bytes_taken<Host>([&](auto& counter) { declare_attention<float>(counter, exec, shape); }));
  const Values q = case_values(tokens * Q), k = case_values(tokens * K), v = case_values(tokens * K),
               out = case_values(tokens * Q), dout = case_values(tokens * Q), dq = case_values(tokens * Q),
               dk = case_values(tokens * K), dv = case_values(tokens * K), lse = case_values(tokens * heads);
  return [=] {
    attention<Host, float>(exec, shape, as_rows(q, Q), as_rows(k, K), as_rows(v, K), {}, as_rows(out, Q), lse,
                           *workspace);
    attention_backward<Host, float>(exec, shape, as_rows(dout, Q), as_rows(q, Q), as_rows(k, K), as_rows(v, K), {},
                                    as_rows(out, Q), lse, as_rows(dq, Q), as_rows(dk, K), as_rows(dv, K), *workspace);
  };
}

std::function<void()> swiglu_case() {
  const Host exec;
  const Values up = case_values(case_rows * 2 * case_width), dup = case_values(up.size()),
               activated = case_values(case_rows * case_width), recomputed = case_values(activated.size());
  return [=] {
    const Rows in = as_rows(up, 2 * case_width), out = as_rows(activated, case_width);
    swiglu<Host, float>(exec, in, out);
    swiglu_backward<Host, float>(exec, out, in, as_rows(dup, 2 * case_width), as_rows(recomputed, case_width));
  };
}

std::function<void()> rms_norm_case() {
  const Host exec;
  const auto workspace =
      std::make_shared<Workspace<Host>>(bytes_of<NormScratch<Host, float>, Host>(case_rows, case_width));
  const Values x = case_values(case_rows * case_width), branch = case_values(x.size()), sum = case_values(x.size()),
               y = case_values(x.size()), dx = case_values(x.size()), weight = case_values(case_width),
               dweight = case_values(case_width), inverse = case_values(case_rows);
  return [=] {
    const auto rows = [](const Values& values) { return as_rows(values, case_width); };
    add_rms_norm<Host, float>(exec, rows(x), rows(branch), weight, 1e-5, rows(sum), rows(y), inverse);
    rms_norm_backward<Host, float>(exec, rows(y), rows(sum), weight, inverse, rows(branch), rows(dx),
                                   Vector<float, Host>(dweight), *workspace);
  };
}

std::function<void()> loss_case() {
  const Host exec;
  const Values given = case_values(case_rows * case_width), logits = case_values(given.size()),
               loss = case_values(case_rows);
  const Kokkos::View<std::int32_t*, Host::memory_space> target("speed case", case_rows);
  return [=] {
    Kokkos::deep_copy(exec, logits, given);  // the gradient takes the place of the logits
    softmax_cross_entropy<Host, float>(exec, target, 1e-3f, true, as_rows(logits, case_width), loss);
  };
}

std::function<void()> adamw_case() {
  const Host exec;
  const Values g = case_values(case_rows * case_width), w = case_values(g.size()), m = case_values(g.size()),
               v("speed case", g.size());
  return [=] { adamw<Host, float>(exec, AdamWStep{.lr = 1e-3}, element_run<Host, float>(g, w, Values(), {m, v})); };
}

std::function<void()> newton_schulz_case() {
  constexpr std::size_t rows = 32, cols = 80;
  const Host exec;
  const NewtonSchulz ns{newton_schulz_steps("simple", 5)};
  const auto gemm = std::make_shared<Gemm<Host>>(exec);
  const auto workspace = std::make_shared<Workspace<Host>>(
      bytes_taken<Host>([&](auto& counter) { declare_orthogonalize<Host>(counter, rows, cols, ns); }));
  const Values given = case_values(rows * cols), result = case_values(given.size());
  return [=] { orthogonalize<Host>(exec, *gemm, *workspace, ns, false, as_rows(given, cols), as_rows(result, cols)); };
}

}  // namespace

std::vector<SpeedCase> kernel_cases() {
  return {{"attention", case_rounds, attention_case},     {"SwiGLU", case_rounds, swiglu_case},
          {"RMSNorm", case_rounds, rms_norm_case},        {"cross entropy", case_rounds, loss_case},
          {"AdamW of a tensor", case_rounds, adamw_case}, {"Newton-Schulz", case_rounds, newton_schulz_case}};
}

}  // namespace sestina
