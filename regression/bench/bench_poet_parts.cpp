// Milliseconds of the parts of POET-X's layer, as lines of JSON for poet_parts.py:
//   bench_poet_parts permute D | layer D B | blocks N | series B COUNT    (D: width, B: block, N: rows)
// "ours" is what the layer runs; "plain" the way that it replaces: a product with a permutation matrix, four
// permutations in place of two, block-diagonal matrices as whole ones, the series in products and sums one after
// another. Both take turns in fp32, and each number is the median of seven rounds, of three for what is slow.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/model/poet_x.hpp"
#include "kernels/model/block_rotations.hpp"

namespace sestina {
namespace {

using Values = Kokkos::View<float*, Host::memory_space>;
using Index = Kokkos::View<std::int32_t*, Host::memory_space>;
using Columns = Matrix<float, Host>;

Values random_values(std::size_t n, float deviation, unsigned seed) {
  const Values values("sestina::bench", n);
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  for (std::size_t i = 0; i < n; ++i) values(i) = normal(engine);
  return values;
}
Index random_index(std::size_t n, unsigned seed) {
  const Index index("sestina::bench", n);
  for (std::size_t i = 0; i < n; ++i) index(i) = static_cast<std::int32_t>(i);
  std::shuffle(index.data(), index.data() + n, std::mt19937(seed));
  return index;
}
Columns matrix(const Values& x, std::size_t cols) { return Columns(x.data(), x.size() / cols, cols); }
template <class T>
Vector<T, Host> flat(const Kokkos::View<T*, Host::memory_space>& x) {
  return Vector<T, Host>(x.data(), x.size());
}

double median_ms(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return 1e3 * seconds[seconds.size() / 2];
}
double seconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Runs both in turn and writes the medians.
void compare(const std::string& sizes, const std::function<void()>& ours, const std::function<void()>& plain) {
  std::vector<double> first, second;
  ours();
  const double slow = seconds_of(plain);
  for (int round = 0; round < (slow > 2 ? 3 : 7); ++round) {
    first.push_back(seconds_of(ours));
    second.push_back(seconds_of(plain));
  }
  std::printf("{%s, \"threads\": %d, \"ours\": %.4f, \"plain\": %.4f}\n", sizes.c_str(), threads_of(Host()),
              median_ms(first), median_ms(second));
}

constexpr std::size_t rows_of_layer = 2048;

// Columns of x (2048, d) by an index, and by a product with the matrix of the permutation.
void permute(std::size_t d) {
  const Host exec;
  Gemm<Host> gemm(exec);
  const Values x = random_values(rows_of_layer * d, 1, 1), y("y", x.size()), p("p", d * d);
  const Index index = random_index(d, 2);
  for (std::size_t j = 0; j < d; ++j) p(static_cast<std::size_t>(index(j)) * d + j) = 1;
  compare(
      "\"d\": " + std::to_string(d),
      [&] { take_columns<Host, float>(exec, matrix(x, d), flat(index), false, matrix(y, d)); },
      [&] { gemm.operator()<float, float>(Op::none, Op::none, 1, matrix(x, d), matrix(p, d), 0, matrix(y, d)); });
}

// The forward pass of a layer (d, d): with the permutations that are left, and with all four, each by an index.
void layer(std::size_t d, std::size_t b) {
  const Host exec;
  Gemm<Host> gemm(exec);
  const std::size_t theta_size = d / b * skew_elements(b);
  const Values x = random_values(rows_of_layer * d, 1, 1), w = random_values(d * d, 0.02f, 2), y("y", x.size()),
               other("other", x.size()), kept("kept", x.size()), theta = random_values(theta_size, 0.01f, 3),
               blocks("blocks", d * b);
  const Index in = random_index(d, 4), out = random_index(d, 5);
  const std::size_t pass = PoetScratch{sizeof(float), sizeof(float)}.pass({b, 1, 0}, rows_of_layer, d, d);
  Workspace<Host> workspace(2 * pass + 8 * d * b * sizeof(float));
  const PoetOptions options{b, 1, 0, true};
  PoetWeight<Host, float> weight{{}, flat(in), flat(out), flat(theta), flat(theta)};
  weight.base.values = matrix(w, d);
  const auto turn = [&](const Values& from, const Index& index, const Values& to) {
    cayley_neumann<Host, float>(exec, gemm, workspace, 1, flat(theta), matrix(blocks, b));
    put_columns<Host, float>(exec, matrix(from, d), flat(index), matrix(to, d));
    times_blocks<Host, float>(exec, gemm, matrix(to, d), Op::none, matrix(blocks, b), matrix(from, d));
    take_columns<Host, float>(exec, matrix(from, d), flat(index), false, matrix(to, d));
  };
  const Values copy("copy", x.size());
  Kokkos::deep_copy(copy, x);
  compare(
      "\"d\": " + std::to_string(d) + ", \"b\": " + std::to_string(b),
      [&] {
        poet_forward<Host, float>({exec, gemm, workspace}, options, weight, matrix(x, d), matrix(kept, d),
                                  matrix(y, d));
      },
      [&] {
        turn(copy, in, other);
        gemm.operator()<float, float>(Op::none, Op::transpose, 1, matrix(other, d), matrix(w, d), 0, matrix(kept, d));
        turn(kept, out, y);
      });
}

// x (n, 4096) times blocks of 256: as a batch, and as one matrix that is put together first.
void blocks(std::size_t n) {
  constexpr std::size_t d = 4096, b = 256;
  const Host exec;
  Gemm<Host> gemm(exec);
  const Values x = random_values(n * d, 1, 1), y("y", x.size()), g = random_values(d * b, 0.06f, 2),
               whole("whole", d * d);
  compare(
      "\"n\": " + std::to_string(n),
      [&] { times_blocks<Host, float>(exec, gemm, matrix(x, d), Op::none, matrix(g, b), matrix(y, d)); },
      [&] {
        Kokkos::parallel_for("whole", Kokkos::RangePolicy<Host>(exec, 0, d), [&](std::size_t i) {
          std::fill_n(whole.data() + i * d, d, 0.0f);
          std::copy_n(g.data() + i * b, b, whole.data() + i * d + i / b * b);
        });
        gemm.operator()<float, float>(Op::none, Op::none, 1, matrix(x, d), matrix(whole, d), 0, matrix(y, d));
      });
}

// Rotations of `count` blocks: a block from the cache at a time, and pass by pass through memory.
void series(std::size_t b, std::size_t count) {
  const Host exec;
  Gemm<Host> gemm(exec);
  const std::size_t n = count * b;
  const Values theta = random_values(count * skew_elements(b), 0.01f, 1), g("g", n * b), q("q", n * b), q2("q2", n * b),
               q3("q3", n * b), q4("q4", n * b);
  Workspace<Host> workspace(4 * n * b * sizeof(float) + 4096);
  const auto product = [&](const Values& a, const Values& c, const Values& to) {
    block_pairs<Host, float>(gemm, 1, matrix(a, b), matrix(c, b), 0, matrix(to, b));
  };
  const auto add = [&](float factor, const Values& from) {
    Kokkos::parallel_for("add", Kokkos::RangePolicy<Host>(exec, 0, n), [&](std::size_t i) {
      for (std::size_t j = i * b; j < (i + 1) * b; ++j) g(j) += factor * from(j);
    });
  };
  compare(
      "\"b\": " + std::to_string(b) + ", \"count\": " + std::to_string(count),
      [&] { cayley_neumann<Host, float>(exec, gemm, workspace, 1, flat(theta), matrix(g, b)); },
      [&] {
        unpack_skew<Host, float>(exec, flat(theta), matrix(q, b));
        product(q, q, q2), product(q2, q, q3), product(q2, q2, q4);
        Kokkos::parallel_for("identity", Kokkos::RangePolicy<Host>(exec, 0, n), [&](std::size_t i) {
          std::fill_n(g.data() + i * b, b, 0.0f);
          g(i * b + i % b) = 1;
        });
        add(2, q), add(2, q2), add(2, q3), add(1, q4);
      });
}

}  // namespace
}  // namespace sestina

int main(int argc, char** argv) {
  Kokkos::ScopeGuard kokkos(argc, argv);
  const std::string part = argc > 2 ? argv[1] : "";
  const auto number = [&](int i) { return i < argc ? std::strtoul(argv[i], nullptr, 10) : 0; };
  const unsigned long first = number(2), second = number(3);
  if (part == "permute" && first > 0)
    sestina::permute(first);
  else if (part == "layer" && second > 0)
    sestina::layer(first, second);
  else if (part == "blocks" && first > 0)
    sestina::blocks(first);
  else if (part == "series" && second > 0)
    sestina::series(first, second);
  else
    return std::fprintf(stderr, "bench_poet_parts permute D | layer D B | blocks N | series B COUNT\n"), 64;
  return 0;
}
