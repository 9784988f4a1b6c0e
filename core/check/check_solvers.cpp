// Decompositions of the vendor library and roots made of them, by their residuals; copies and digests of bits.
#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "kernels/optimizer/inverse_root.hpp"

namespace sestina {
namespace {

// A square matrix of doubles on the host, (d, d).
using Square = std::vector<double>;

Square times(std::size_t d, const Square& a, const Square& b) {
  Square c(d * d, 0);
  for (std::size_t i = 0; i < d; ++i)
    for (std::size_t k = 0; k < d; ++k)
      for (std::size_t j = 0; j < d; ++j) c[i * d + j] += a[i * d + k] * b[k * d + j];
  return c;
}

Square transposed(std::size_t d, const Square& a) {
  Square b(d * d);
  for (std::size_t i = 0; i < d; ++i)
    for (std::size_t j = 0; j < d; ++j) b[j * d + i] = a[i * d + j];
  return b;
}

double largest_apart(const Square& a, const Square& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

Square identity(std::size_t d) {
  Square one(d * d, 0);
  for (std::size_t i = 0; i < d; ++i) one[i * d + i] = 1;
  return one;
}

template <class Exec>
Square fetched(const CheckField<Exec, float>& field) {
  Square values(field.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = field.now(i);
  return values;
}

template <class Exec>
class SolverCheck {
 public:
  SolverCheck(const CheckContext<Exec>& context, std::size_t d)
      : context_(context),
        checker_(context.checker),
        d_(d),
        shape_(fmt::format("{} x {}", d, d)),
        gemm_(checker_.exec(), context.options.run.deterministic),
        solver_(checker_.exec()),
        workspace_(bytes_taken<Exec>([&](auto& counter) {
          declare_inverse_root<Exec, float>(counter, d);
          Solver<Exec>::template declare_eigh<float>(counter, d);
          Solver<Exec>::template declare_qr<float>(counter, d, d, d);
        })),
        a_(d, d),
        positive_(d, d) {
    // A symmetric, with numbers up to 1; and X X^T / d + I / 10, whose eigenvalues lie between 0.1 and about 1.5.
    const UniformNumbers numbers{23};
    a_.fill([&](std::size_t i) { return numbers(std::min(i / d, i % d) * d + std::max(i / d, i % d)); });
    Square x(d * d);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = numbers(d * d + i);
    const Square gram = times(d, x, transposed(d, x));
    positive_.fill([&](std::size_t i) {
      return static_cast<float>(gram[i] / static_cast<double>(d) + (i / d == i % d ? 0.1 : 0));
    });
  }

  void eigen() {
    auto vectors = checker_.template blank<float>(d_, d_);
    auto values = checker_.template blank<float>(1, d_);
    const auto defect = [&] {
      const Square v = fetched(vectors);
      Square scaled = v;
      for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= values.now(i % d_);
      const double back = largest_apart(times(d_, scaled, transposed(d_, v)), starts(a_));
      return std::max(back, largest_apart(times(d_, transposed(d_, v), v), identity(d_)));
    };
    std::vector<CheckedOutput> outputs = {measured("values", values, bound(), [] { return 0.0; }),
                                          measured("V diag V^T - A, V^T V - I", vectors, bound(), defect)};
    checker_.check({"eigh", shape_}, std::move(outputs),
                   [&] { solver_.template eigh<float>(a_.matrix(), vectors.matrix(), values.vector(), workspace_); });
  }

  // Two of them: the second one is the first times 2.
  void eigen_batch() {
    auto given = checker_.template blank<float>(2 * d_, d_), vectors = checker_.template blank<float>(2 * d_, d_);
    auto values = checker_.template blank<float>(2, d_);
    given.fill(
        [&](std::size_t i) { return static_cast<float>(a_.start(i % (d_ * d_))) * (i < d_ * d_ ? 1.0f : 2.0f); });
    const auto defect = [&] {
      double worst = 0;
      for (std::size_t i = 0; i < 2; ++i) {
        Square v(d_ * d_), scaled(d_ * d_), wanted = starts(a_);
        for (std::size_t at = 0; at < v.size(); ++at) {
          v[at] = vectors.now(i * d_ * d_ + at);
          scaled[at] = v[at] * values.now(i * d_ + at % d_);
          wanted[at] *= i == 0 ? 1 : 2;
        }
        worst = std::max({worst, largest_apart(times(d_, scaled, transposed(d_, v)), wanted),
                          largest_apart(times(d_, transposed(d_, v), v), identity(d_))});
      }
      return worst;
    };
    const CheckField<Exec, std::int32_t> info(1, 2);
    Workspace<Exec> workspace(
        bytes_taken<Exec>([&](auto& counter) { solver_.template declare_eigh_batch<float>(counter, 2, d_); }));
    std::vector<CheckedOutput> outputs = {measured("A", given, bound(), [] { return 0.0; }),  // it is used up
                                          measured("values", values, bound(), [] { return 0.0; }),
                                          measured("V diag V^T - A, V^T V - I", vectors, 2 * bound(), defect)};
    checker_.check({"eigh of a batch", fmt::format("2 x {}", shape_)}, std::move(outputs), [&] {
      solver_.template eigh_batch<float>(given.matrix(), vectors.matrix(), values.matrix(), info.vector(), workspace);
    });
  }

  void qr() {
    auto q = checker_.template blank<float>(d_, d_);
    const auto defect = [&] {
      const Square columns = fetched(q), rest = times(d_, transposed(d_, columns), starts(a_));
      double below = 0;  // R = Q^T A is upper triangular
      for (std::size_t i = 0; i < d_; ++i)
        for (std::size_t j = 0; j < i; ++j) below = std::max(below, std::abs(rest[i * d_ + j]));
      return std::max(below, largest_apart(times(d_, transposed(d_, columns), columns), identity(d_)));
    };
    checker_.check({"qr", shape_}, {measured("Q^T A below the diagonal, Q^T Q - I", q, bound(), defect)},
                   [&] { solver_.template qr<float>(a_.matrix(), q.matrix(), workspace_); });
  }

  // A is symmetric, so that it is its columns as rows.
  void qr_columns() {
    auto columns = checker_.template blank<float>(d_, d_);
    columns.fill([&](std::size_t i) { return a_.start(i); });
    const auto defect = [&] {
      const Square rows = fetched(columns), rest = times(d_, rows, starts(a_));
      double below = 0;
      for (std::size_t i = 0; i < d_; ++i)
        for (std::size_t j = 0; j < i; ++j) below = std::max(below, std::abs(rest[i * d_ + j]));
      return std::max(below, largest_apart(times(d_, rows, transposed(d_, rows)), identity(d_)));
    };
    checker_.check({"qr in place", shape_}, {measured("Q^T A below the diagonal, Q^T Q - I", columns, bound(), defect)},
                   [&] { solver_.template qr_columns<float>(d_, columns.matrix(), workspace_); });
  }

  void root() {
    auto basis = checker_.template blank<float>(d_, d_), root = checker_.template blank<float>(d_, d_);
    const auto defect = [&] {
      const Square r = fetched(root), squared = times(d_, r, r), fourth = times(d_, squared, squared);
      return largest_apart(times(d_, fourth, starts(positive_)), identity(d_));
    };
    // The root's error is relative to its largest eigenvalue, 10^(1/4), four factors of which meet one of about 1.5.
    checker_.check({"inverse fourth root", shape_}, {measured("root^4 A - I", root, 8 * bound(), defect)}, [&] {
      inverse_root_eigh<Exec, float>({checker_.exec(), gemm_, solver_, workspace_}, RootRule{}, positive_.matrix(),
                                     basis.matrix(), root.matrix());
    });
  }

 private:
  static Square starts(const CheckField<Exec, float>& field) {
    Square values(field.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = field.start(i);
    return values;
  }
  // Some eps of the norm of A, 2 (d / 3)^(1/2), for a backward error; Q is orthonormal to less.
  double bound() const { return 40 * std::sqrt(static_cast<double>(d_)) * static_cast<double>(spacing<float>); }

  const CheckContext<Exec>& context_;
  Checker<Exec>& checker_;
  std::size_t d_;
  std::string shape_;
  Gemm<Exec> gemm_;
  Solver<Exec> solver_;
  Workspace<Exec> workspace_;
  CheckField<Exec, float> a_, positive_;
};

}  // namespace

template <class Exec, class T>
void check_solvers(const CheckContext<Exec>& context) {
  SolverCheck<Exec> check(context, std::min<std::size_t>(extent(context.model().hidden_size), 384));
  check.eigen();
  check.eigen_batch();
  check.qr();
  check.qr_columns();
  check.root();
}

template <class Exec, class T>
void check_copies(const CheckContext<Exec>& context) {
  Checker<Exec>& checker = context.checker;
  constexpr std::size_t n = std::size_t{4} << 20;
  auto from = checker.template numbers<float>(1, n);
  auto to = checker.template blank<float>(1, n);
  Kokkos::View<float*, Kokkos::HostSpace> through("sestina::check", n);
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = from.start(i);
  checker.check(
      {"copy to the host and back", fmt::format("{} MiB", n * sizeof(float) >> 20), 0, 2.0 * n * sizeof(float)},
      {expected("copy", to, 0, std::move(values))}, [&] {
        Kokkos::deep_copy(through, Kokkos::View<float*, typename Exec::memory_space>(from.vector()));
        Kokkos::deep_copy(Kokkos::View<float*, typename Exec::memory_space>(to.vector()), through);
      });

  Kokkos::View<std::uint64_t*, Kokkos::HostSpace> plain("sestina::check", 1);
  const Vector<std::uint64_t, Host> on_host(plain.data(), 1);
  std::vector<float> copy(n);
  for (std::size_t i = 0; i < n; ++i) copy[i] = static_cast<float>(from.start(i));
  digest_bits(Host(), copy.data(), n * sizeof(float), sizeof(float), on_host);
  Host().fence();
  CheckField<Exec, std::uint64_t> digest(1, 1);
  digest.fill([](std::size_t) { return 0; });
  checker.check({"digest of bits", fmt::format("{} MiB", n * sizeof(float) >> 20), 0, 1.0 * n * sizeof(float)},
                {measured("digest", digest, 0, [&] { return *digest.fetched() == plain(0) ? 0.0 : 1.0; })}, [&] {
                  digest_bits(checker.exec(), from.vector().data(), n * sizeof(float), sizeof(float), digest.vector());
                });
}

#define SESTINA_CHECK_SOLVERS(Exec, T)                             \
  template void check_solvers<Exec, T>(const CheckContext<Exec>&); \
  template void check_copies<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_SOLVERS)

}  // namespace sestina
