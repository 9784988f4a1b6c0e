// Newton-Schulz in both of its forms, as a Markdown table:
//   bench_newton_schulz [rows cols]...
// Milliseconds of five iterations on one matrix with all threads, products in fp32 and in bf16; the FLOPs of the gram
// form as a part of those of the plain one; and how far either is from the plain loops in double, as the root mean
// square of the difference over that of the result. Medians of rounds made in turn; times are those on the clock, so
// nothing else should run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/optimizer/newton_schulz.hpp"
#include "kernels/optimizer/newton_schulz_sets.hpp"

namespace sestina {
namespace {

constexpr int form_rounds = 9;

// One matrix, its result in either form, and the time of each round.
struct FormBench {
  FormBench(std::size_t rows, std::size_t cols) : rows(rows), cols(cols), given(rows * cols) {
    std::mt19937_64 engine(rows);
    std::normal_distribution<float> normal;
    for (float& x : given) x = normal(engine);
    for (std::vector<float>& x : result) x.resize(rows * cols);
  }
  double run(const NewtonSchulz& ns, bool in_bf16, std::vector<float>& to) {
    Workspace<Host> workspace(
        bytes_taken<Host>([&](auto& counter) { declare_orthogonalize<Host>(counter, rows, cols, ns); }));
    const auto start = std::chrono::steady_clock::now();
    orthogonalize<Host>(exec, gemm, workspace, ns, in_bf16, Matrix<const float, Host>(given.data(), rows, cols),
                        Matrix<float, Host>(to.data(), rows, cols));
    exec.fence();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Host exec;
  Gemm<Host> gemm{exec};
  std::size_t rows, cols;
  std::vector<float> given, result[2];
};

template <class Values>
double distance(const std::vector<float>& x, const Values& from) {
  double difference = 0, squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(static_cast<double>(x[i]) - static_cast<double>(from[i]), 2);
    squares += std::pow(static_cast<double>(from[i]), 2);
  }
  return std::sqrt(difference / squares);
}

void bench_forms(std::size_t rows, std::size_t cols) {
  FormBench bench(rows, cols);
  const auto steps = newton_schulz_steps("simple", 5);
  NewtonSchulz forms[2] = {{steps}, {steps}};
  forms[1].form = NewtonSchulzForm::gram;
  const auto s = static_cast<double>(std::min(rows, cols)), l = static_cast<double>(std::max(rows, cols));
  const double part = newton_schulz_flops(steps, true, s, l) / newton_schulz_flops(steps, false, s, l);
  std::vector<double> exact(bench.given.begin(), bench.given.end());
  newton_schulz_plain(forms[0], rows, cols, exact);
  for (const bool in_bf16 : {false, true}) {
    std::vector<double> seconds[2];
    for (int round = -1; round < form_rounds; ++round)
      for (int form = 0; form < 2; ++form) {
        const double spent = bench.run(forms[form], in_bf16, bench.result[form]);
        if (round >= 0) seconds[form].push_back(spent);
      }
    for (std::vector<double>& all : seconds) std::nth_element(all.begin(), all.begin() + form_rounds / 2, all.end());
    const double plain = seconds[0][form_rounds / 2], gram = seconds[1][form_rounds / 2];
    std::printf("| %zu x %zu | %s | %.2f | %.2f | %.1f | %.1f | %.1e | %.1e |\n", rows, cols, in_bf16 ? "bf16" : "fp32",
                part, gram / plain, 1e3 * plain, 1e3 * gram, distance(bench.result[0], exact),
                distance(bench.result[1], exact));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace sestina

int main(int argc, char** argv) {
  const Kokkos::ScopeGuard guard(argc, argv);
  std::printf(
      "| matrix | products | FLOPs, gram / plain | time, gram / plain | plain ms | gram ms | plain from "
      "double | gram from double |\n|---|---|---|---|---|---|---|---|\n");
  const char* const usual[] = {"", "768", "3072", "1024", "1024"};
  const bool given = argc > 2;
  for (int i = 1; i + 1 < (given ? argc : 5); i += 2) {
    const auto number = [&](int at) { return std::strtoul(given ? argv[at] : usual[at], nullptr, 10); };
    sestina::bench_forms(number(i), number(i + 1));
  }
  return 0;
}
