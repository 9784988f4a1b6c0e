// Milliseconds of one linear layer, forward and backward, in the forms of its weight, as a Markdown table:
//   bench_forms [rows] [bf16] [micros=M] [out:in:block ...]
// dense: three products. poet-x fast, mem, xq: core/model/poet_x.hpp. naive: as POET was first written (the weight is
// multiplied, permutations and block-diagonal rotations are whole matrices): what POET-X is measured against. The forms
// take turns, and each number is the median of its rounds. With M micro-batches of so many rows: poet-x fast, whose
// rotations' gradients go back through the series for each of them, or once for all.
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
#include "kernels/model/quantise.hpp"

namespace sestina {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class E>
using Buffer = Kokkos::View<E*, Host::memory_space>;

template <class E>
Buffer<E> random_buffer(std::size_t n, double deviation, unsigned seed) {
  const Buffer<E> buffer("sestina::bench", n);
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, static_cast<float>(deviation));
  for (std::size_t i = 0; i < n; ++i) buffer(i) = static_cast<E>(normal(engine));
  return buffer;
}

Buffer<std::int32_t> random_permutation(std::size_t n, unsigned seed) {
  const Buffer<std::int32_t> index("sestina::bench", n);
  for (std::size_t i = 0; i < n; ++i) index(i) = static_cast<std::int32_t>(i);
  std::shuffle(index.data(), index.data() + n, std::mt19937(seed));
  return index;
}

struct Shape {
  std::size_t rows, out, in, block;
};

// One layer with its activations, in compute type T.
template <class T>
class Layer {
 public:
  using A = Acc<T>;
  explicit Layer(const Shape& shape)
      : s_(shape),
        x_(random_buffer<T>(s_.rows * s_.in, 1, 1)),
        dy_(random_buffer<T>(s_.rows * s_.out, 1, 2)),
        w_(random_buffer<T>(s_.out * s_.in, 0.02, 3)),
        y_("y", s_.rows * s_.out),
        dx_("dx", s_.rows * s_.in),
        kept_("kept", s_.rows * s_.out),
        inner_("inner", s_.rows * s_.in),
        dw_("dw", s_.out * s_.in),
        perm_in_(random_permutation(s_.in, 4)),
        perm_out_(random_permutation(s_.out, 5)),
        theta_in_(random_buffer<A>(packed(s_.in), 0.01, 6)),
        theta_out_(random_buffer<A>(packed(s_.out), 0.01, 7)),
        d_in_("d_in", packed(s_.in)),
        d_out_("d_out", packed(s_.out)),
        blocks_("blocks", (s_.in + s_.out) * s_.block),
        codes_("codes", s_.out * s_.in),
        zeros_("zeros", group_count(s_.out * s_.in, group)),
        scales_("scales", zeros_.size()),
        workspace_(workspace_bytes()) {
    const auto values = random_buffer<A>(s_.out * s_.in, 0.02, 3);
    group_quantise<Host, A>(exec_, flat(values), true, group_codes());
  }

  void dense() {
    gemm_.operator()<T, T>(Op::none, Op::transpose, 1, matrix(x_, s_.in), matrix(w_, s_.in), 0, matrix(y_, s_.out));
    gemm_.operator()<T, T>(Op::none, Op::none, 1, matrix(dy_, s_.out), matrix(w_, s_.in), 0, matrix(dx_, s_.in));
    gemm_.operator()<T, A>(Op::transpose, Op::none, 1, matrix(dy_, s_.out), matrix(x_, s_.in), 0, matrix(dw_, s_.in));
  }

  // micros: passes whose gradients are one sum; once: those of the rotations go back through the series together.
  void poet(bool keeps, bool coded, int micros = 1, bool once = false) {
    const PoetOptions options{.block = s_.block, .group = coded ? group : 0};
    PoetWeight<Host, T> weight{{}, flat(perm_in_), flat(perm_out_), flat(theta_in_), flat(theta_out_)};
    if (coded)
      weight.base.coded = group_codes();
    else
      weight.base.values = matrix(w_, s_.in);
    const ProductSpace<Host> space{exec_, gemm_, workspace_};
    const Matrix<T, Host> kept = keeps ? matrix(kept_, s_.out) : Matrix<T, Host>{}, inner = matrix(inner_, s_.in);
    const Matrix<const T, Host> x = matrix(x_, s_.in), dy = matrix(dy_, s_.out);
    const PoetBlocks<Host, A> blocks{matrix(blocks_, s_.block), s_.in};
    for (int micro = 0; micro < micros; ++micro) {
      poet_forward<Host, T>(space, options, weight, x, kept, matrix(y_, s_.out));
      poet_backward_input<Host, T>(space, options, weight, dy, false, inner, matrix(dx_, s_.in));
      if (once)
        poet_backward_blocks<Host, T>(space, options, weight, dy, x, kept, inner, micro > 0, blocks);
      else
        poet_backward_rotations<Host, T>(space, options, weight, dy, x, kept, inner, micro > 0, flat(d_in_),
                                         flat(d_out_));
    }
    if (once) poet_rotations_from_blocks<Host, T>(space, options, weight, blocks, flat(d_in_), flat(d_out_));
  }

  // W_eff = P_out^T B_out^T H B_in^T P_in, all of them matrices: G as a whole, then four products for the weight, one
  // for the layer; backward the chain from dW_eff = dy^T x to both block-diagonal matrices and through the series.
  void naive() {
    using M = Matrix<T, Host>;
    const std::size_t m = s_.out, n = s_.in;
    auto frame = workspace_.frame();
    const auto take = [&](std::size_t rows, std::size_t cols) { return workspace_.template take<T>(rows, cols); };
    const M g_in = take(n, n), g_out = take(m, m), p_in = take(n, n), p_out = take(m, m);
    whole(theta_in_, g_in), whole(theta_out_, g_out), permutation(perm_in_, p_in), permutation(perm_out_, p_out);
    const M a = take(m, n), b = take(m, n), c = take(m, n), weight = take(m, n);
    const M h = matrix(w_, n);
    multiply(Op::none, Op::transpose, h, g_in, a);   // H B_in^T
    multiply(Op::transpose, Op::none, g_out, a, b);  // B_out^T H B_in^T
    multiply(Op::transpose, Op::none, p_out, b, c);  // rows permuted
    multiply(Op::none, Op::none, c, p_in, weight);   // columns permuted
    multiply(Op::none, Op::transpose, matrix(x_, n), weight, matrix(y_, m));
    multiply(Op::none, Op::none, matrix(dy_, m), weight, matrix(dx_, n));
    multiply(Op::transpose, Op::none, matrix(dy_, m), matrix(x_, n), weight);
    multiply(Op::none, Op::transpose, weight, p_in, c);
    multiply(Op::none, Op::none, p_out, c, b);       // dZ, Z = B_out^T (H B_in^T)
    multiply(Op::none, Op::transpose, a, b, p_out);  // dB_out = A dZ^T
    multiply(Op::none, Op::none, g_out, b, c);       // dA = B_out dZ
    multiply(Op::transpose, Op::none, c, h, p_in);   // dB_in = dA^T H
    gradient(theta_out_, p_out, d_out_), gradient(theta_in_, p_in, d_in_);
  }

 private:
  static constexpr std::size_t group = 256;
  std::size_t packed(std::size_t n) const { return n * (s_.block - 1) / 2; }
  template <class E>
  static Vector<E, Host> flat(const Buffer<E>& b) {
    return Vector<E, Host>(b.data(), b.size());
  }
  template <class E>
  static Matrix<E, Host> matrix(const Buffer<E>& b, std::size_t cols) {
    return Matrix<E, Host>(b.data(), b.size() / cols, cols);
  }
  std::size_t workspace_bytes() const {
    const std::size_t wide = std::max(s_.out, s_.in);
    const std::size_t naive = 10 * wide * wide * sizeof(T) + 8 * wide * s_.block * sizeof(A);
    return std::max(naive, 2 * PoetScratch{sizeof(T), sizeof(A)}.pass({s_.block, 1, group}, s_.rows, s_.out, s_.in)) +
           (std::size_t{1} << 20);
  }
  void multiply(Op op_a, Op op_b, Matrix<const T, Host> a, Matrix<const T, Host> b, const Matrix<T, Host>& c) {
    gemm_.template operator()<T, T>(op_a, op_b, 1, a, b, 0, c);
  }
  void permutation(const Buffer<std::int32_t>& index, const Matrix<T, Host>& p) {
    std::fill(p.data(), p.data() + p.size(), T{});
    for (std::size_t i = 0; i < index.size(); ++i) p(static_cast<std::size_t>(index(i)), i) = T(1.0f);
  }
  // The block-diagonal matrix (n, n).
  void whole(const Buffer<A>& theta, const Matrix<T, Host>& g) {
    auto frame = workspace_.frame();
    const Matrix<T, Host> blocks = workspace_.template take<T>(g.extent(0), s_.block);
    cayley_neumann<Host, T>(exec_, gemm_, workspace_, 1, flat(theta), blocks);
    std::fill(g.data(), g.data() + g.size(), T{});
    for (std::size_t i = 0; i < g.extent(0); ++i)
      for (std::size_t j = 0; j < s_.block; ++j) g(i, i / s_.block * s_.block + j) = blocks(i, j);
  }
  void gradient(const Buffer<A>& theta, const Matrix<T, Host>& d, const Buffer<A>& d_theta) {
    auto frame = workspace_.frame();
    const Matrix<A, Host> blocks = workspace_.template take<A>(d.extent(0), s_.block);
    for (std::size_t i = 0; i < d.extent(0); ++i)
      for (std::size_t j = 0; j < s_.block; ++j) blocks(i, j) = static_cast<A>(d(i, i / s_.block * s_.block + j));
    cayley_neumann_backward<Host, A>(exec_, gemm_, workspace_, 1, flat(theta), blocks, false, flat(d_theta));
  }

  GroupCodes<Host, A> group_codes() { return {group, 8, flat(codes_), flat(zeros_), flat(scales_)}; }

  Host exec_;
  Shape s_;
  Buffer<T> x_, dy_, w_, y_, dx_, kept_, inner_;
  Buffer<A> dw_;
  Buffer<std::int32_t> perm_in_, perm_out_;
  Buffer<A> theta_in_, theta_out_, d_in_, d_out_, blocks_;
  Buffer<std::uint8_t> codes_, zeros_;
  Buffer<A> scales_;
  Gemm<Host> gemm_{exec_};
  Workspace<Host> workspace_;
};

struct Contender {
  std::function<void()> run;
  int rounds;
  std::vector<double> milliseconds = {};
};

template <class T>
void run(const Shape& s, int micros) {
  Layer<T> layer(s);
  std::vector<Contender> all;
  if (micros > 1)
    all = {{[&] { layer.poet(true, false, micros, false); }, 7}, {[&] { layer.poet(true, false, micros, true); }, 7}};
  else
    all = {{[&] { layer.dense(); }, 7},
           {[&] { layer.poet(true, false); }, 7},
           {[&] { layer.poet(false, false); }, 7},
           {[&] { layer.poet(false, true); }, 7},
           {[&] { layer.naive(); }, 3}};
  for (Contender& one : all) one.run();
  for (int round = 0; round < 7; ++round)
    for (Contender& one : all) {
      if (round >= one.rounds) continue;
      const double start = now_seconds();
      one.run();
      one.milliseconds.push_back(1e3 * (now_seconds() - start));
    }
  std::printf("| %zu x %zu, %zu |", s.out, s.in, s.block);
  double first = 0;
  for (Contender& one : all) {
    std::sort(one.milliseconds.begin(), one.milliseconds.end());
    const double median = one.milliseconds[one.milliseconds.size() / 2];
    if (first == 0) first = median;
    std::printf(" %.1f (%.2f) |", median, median / first);
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace
}  // namespace sestina

int main(int argc, char** argv) {
  Kokkos::ScopeGuard kokkos(argc, argv);
  std::size_t rows = 2048;
  bool bf16 = false;
  int micros = 1;
  std::vector<sestina::Shape> shapes;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    sestina::Shape s{};
    if (std::sscanf(word.c_str(), "%zu:%zu:%zu", &s.out, &s.in, &s.block) == 3)
      shapes.push_back(s);
    else if (std::sscanf(word.c_str(), "micros=%d", &micros) == 1)
      continue;
    else if (word == "bf16")
      bf16 = true;
    else
      rows = std::strtoul(word.c_str(), nullptr, 10);
  }
  // Square layers of llama-60m, 130m, 350m, 1b, 3b, and the wide one of 3b.
  if (shapes.empty())
    shapes = {{0, 512, 512, 64},    {0, 512, 512, 128},   {0, 768, 768, 128},
              {0, 1024, 1024, 128}, {0, 1024, 1024, 256}, {0, 2048, 2048, 256},
              {0, 2560, 2560, 256}, {0, 2560, 2560, 512}, {0, 7168, 2560, 256}};
  std::printf("%zu rows, %s, %d threads: ms (over the first column)\n\n", rows, bf16 ? "bf16" : "fp32",
              sestina::threads_of(Kokkos::DefaultHostExecutionSpace()));
  std::printf(micros > 1 ? "| out x in, block | each | once |\n|---|---|---|\n"
                         : "| out x in, block | dense | fast | mem | xq | naive |\n|---|---|---|---|---|---|\n");
  for (sestina::Shape s : shapes) {
    s.rows = rows;
    bf16 ? sestina::run<sestina::bf16>(s, micros) : sestina::run<float>(s, micros);
  }
}
