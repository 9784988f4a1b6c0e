// Milliseconds and residuals of every way to refresh a preconditioner, as a Markdown table:
//   bench_refresh [sizes...]
// One thread; time is what the processor spent on it, which hardly depends on who else is on the machine.
// The factor is an average that has moved on by ten updates with beta2 = .95 since its published basis, of gradients
// whose singular values fall like 1/k.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "core/optimizer/refresh/refresh.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "kernels/optimizer/inverse_root.hpp"

namespace sestina {
namespace {

using Space = Serial;

struct Square {
  explicit Square(std::size_t d) : d(d), values(d * d) {}
  Matrix<float, Space> view() { return Matrix<float, Space>(values.data(), d, d); }
  Vector<const float, Space> flat() const { return Vector<const float, Space>(values.data(), values.size()); }
  std::size_t d;
  std::vector<float> values;
};

struct Bench {
  explicit Bench(std::size_t d)
      : d(d),
        stream{Space(), Gemm<Space>(Space()), Workspace<Space>(bytes(d))},
        factor(d),
        basis(d),
        out(d),
        root(d),
        wide(Workspace<Space>(bytes(d) * 4)) {}
  static std::size_t bytes(std::size_t d) {
    std::size_t most = 0;
    for (RefreshMethod m : {RefreshMethod::eigen_basis, RefreshMethod::power_qr, RefreshMethod::inverse_root_eigh})
      most = std::max(most, bytes_taken<Space>([&](auto& counter) { declare_refresh<Space>(counter, m, d); }));
    return most;
  }

  // factor = a factor + b G G^T.
  void add_gradients(std::mt19937_64& engine, float a, float b) {
    std::normal_distribution<float> normal;
    Square g(d), mixed(d);
    for (std::size_t i = 0; i < d; ++i)
      for (std::size_t j = 0; j < d; ++j)
        g.values[i * d + j] = normal(engine) / (static_cast<float>(i + 1) * std::sqrt(static_cast<float>(d)));
    stream.gemm.operator()<float, float>(Op::none, Op::none, 1, turn, g.view(), 0, mixed.view());
    stream.gemm.symmetric<float, float>(Op::none, b, mixed.view(), a, factor.view());
  }

  double best_ms(const std::function<void()>& run) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 3; ++i) {
      const std::clock_t start = std::clock();
      run();
      best = std::min(best, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  }

  double norm(const Square& x) { return std::sqrt(sum_of_squares<Space, float>(stream.exec, x.flat(), wide)); }
  // |Q^T Q - I| / sqrt(d)
  double orthogonality(Square& q) {
    Square product(d);
    stream.gemm.operator()<float, float>(Op::transpose, Op::none, 1, q.view(), q.view(), 0, product.view());
    for (std::size_t i = 0; i < d; ++i) product.values[i * d + i] -= 1;
    return norm(product) / std::sqrt(static_cast<double>(d));
  }
  // |off(Q^T K Q)| / |K|
  double off_diagonal(Square& q) {
    Square product(d), turned(d);
    stream.gemm.operator()<float, float>(Op::none, Op::none, 1, factor.view(), q.view(), 0, product.view());
    stream.gemm.operator()<float, float>(Op::transpose, Op::none, 1, q.view(), product.view(), 0, turned.view());
    for (std::size_t i = 0; i < d; ++i) turned.values[i * d + i] = 0;
    return norm(turned) / norm(factor);
  }
  // |X - want| / |want| against the root in fp64.
  double root_error() {
    Square difference(d);
    for (std::size_t i = 0; i < d * d; ++i) difference.values[i] = root.values[i] - exact[i];
    Square want(d);
    want.values = exact;
    return norm(difference) / norm(want);
  }
  void find_exact(const RootRule& rule) {
    std::vector<double> k(factor.values.begin(), factor.values.end()), v(d * d), x(d * d);
    Solver<Space> solver(stream.exec);
    Workspace<Space> workspace(
        bytes_taken<Space>([&](auto& counter) { declare_inverse_root<Space, double>(counter, d); }));
    inverse_root_eigh<Space, double>({stream.exec, stream.gemm, solver, workspace}, rule,
                                     Matrix<const double, Space>(k.data(), d, d), Matrix<double, Space>(v.data(), d, d),
                                     Matrix<double, Space>(x.data(), d, d));
    exact.assign(x.begin(), x.end());
  }

  std::size_t d;
  Stream<Space> stream;
  Square factor, basis, out, root;
  Workspace<Space> wide;
  Matrix<float, Space> turn;
  std::vector<float> exact;
};

void run(std::size_t d) {
  Bench b(d);
  std::mt19937_64 engine(1);
  std::normal_distribution<float> normal;
  Square mixing(d);
  for (float& value : mixing.values) value = normal(engine);
  b.stream.solver.qr<float>(mixing.view(), mixing.view(), b.stream.workspace);
  b.turn = mixing.view();
  b.add_gradients(engine, 0, 1);
  std::int64_t failures = 0;
  RefreshJob<Space> job{.method = RefreshMethod::eigen_basis,
                        .factor = b.factor.view(),
                        .basis = b.basis.view(),
                        .new_basis = b.basis.view()};
  refresh(b.stream, job, failures);
  b.add_gradients(engine, 0.6f, 0.4f);  // .95^10 = .6

  job.basis = job.new_basis = b.out.view();
  const double eigh = b.best_ms([&] { refresh(b.stream, job, failures); });
  std::printf("| %zu | %.1f | %.1e, %.1e ", d, eigh, b.orthogonality(b.out), b.off_diagonal(b.out));

  job.method = RefreshMethod::power_qr;
  const double power = b.best_ms([&] {
    b.out.values = b.basis.values;
    refresh(b.stream, job, failures);
  });
  std::printf("| %.1f | %.1e, %.2f -> %.2f ", power, b.orthogonality(b.out), b.off_diagonal(b.basis),
              b.off_diagonal(b.out));

  // Large enough for fp32 to see the smallest eigenvalues.
  job.eps = 1e-5;
  b.find_exact({.eps = job.eps});
  job.root = b.root.view();
  job.max_iterations = 0;
  for (RefreshMethod method : {RefreshMethod::inverse_root_eigh, RefreshMethod::inverse_root_newton}) {
    job.method = method;
    const double ms = b.best_ms([&] { refresh(b.stream, job, failures); });
    std::printf("| %.1f | %.1e ", ms, b.root_error());
  }
  job.method = RefreshMethod::inverse_root_qr;
  job.max_iterations = 1;
  const double warm = b.best_ms([&] {
    b.out.values = b.basis.values;
    refresh(b.stream, job, failures);
  });
  std::printf("| %.1f | %.1e |\n", warm, b.root_error());
  std::fflush(stdout);
}

}  // namespace
}  // namespace sestina

int main(int argc, char** argv) {
  Kokkos::ScopeGuard kokkos(argc, argv);
  std::printf(
      "| d | eigh, ms | orthogonality, off-diagonal | power_qr, ms | orthogonality, off-diagonal before -> after | "
      "root eigh, ms | error | root newton, ms | error | root qr, ms | error |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n");
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoul(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {128, 256, 512, 1024, 2048};
  for (const std::size_t d : sizes) sestina::run(d);
}
