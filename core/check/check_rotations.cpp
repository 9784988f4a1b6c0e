// Rotations of POET-X (kernels/model/block_rotations.hpp): the series and its gradient, and products of moved columns
// with their blocks, on sides of the deck's model, compared with their formulas.
#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "core/layout/poet_x_form.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/model/block_rotations.hpp"

namespace sestina {
namespace {

// Blocks of a side that are checked: one at least, and no more of them than a plain reference multiplies in a second.
std::size_t checked_blocks(std::size_t side, std::size_t b) {
  constexpr std::size_t most = std::size_t{1} << 24;
  return std::clamp<std::size_t>(side / b, 1, std::clamp<std::size_t>(most / (b * b * b), 1, 4));
}
// Larger ones are swept by products alone, which have their own checks (check_products.cpp).
constexpr std::int64_t largest_checked_block = 256;

// A block (b, b) on the host, and products of blocks.
struct PlainBlock {
  std::size_t b;
  std::vector<double> x = std::vector<double>(b * b, 0.0);
  double& operator()(std::size_t i, std::size_t j) { return x[i * b + j]; }
  double operator()(std::size_t i, std::size_t j) const { return x[i * b + j]; }
};
// Adds factor left right to `to`, one of them transposed or none.
enum class Transposed { none, left, right };
void add_product(double factor, const PlainBlock& left, const PlainBlock& right, Transposed which, PlainBlock& to) {
  const std::size_t b = to.b;
  for (std::size_t i = 0; i < b; ++i)
    for (std::size_t l = 0; l < b; ++l) {
      const double a = factor * (which == Transposed::left ? left(l, i) : left(i, l));
      for (std::size_t j = 0; j < b; ++j) to(i, j) += a * (which == Transposed::right ? right(j, l) : right(l, j));
    }
}

// Returns the sum of the identity and of blocks, times their factors.
PlainBlock sum_of(double identity, std::initializer_list<std::pair<double, const PlainBlock*>> terms) {
  PlainBlock sum{terms.begin()->second->b};
  for (std::size_t i = 0; i < sum.b; ++i) sum(i, i) = identity;
  for (const auto& [factor, block] : terms)
    for (std::size_t e = 0; e < sum.x.size(); ++e) sum.x[e] += factor * block->x[e];
  return sum;
}

// Returns I + 2 Q + 2 Q^2 + 2 Q^3 + k Q^4.
PlainBlock plain_series(double k, const PlainBlock& q) {
  PlainBlock q2{q.b};
  add_product(1, q, q, Transposed::none, q2);
  PlainBlock g = sum_of(1, {{2, &q}, {2, &q2}});
  add_product(1, q2, sum_of(0, {{2, &q}, {k, &q2}}), Transposed::none, g);
  return g;
}
// Returns the gradient by Q of <d, G>: of Q^p the sum of (Q^i)^T d (Q^(p-1-i))^T over i < p.
PlainBlock plain_gradient(double k, const PlainBlock& q, const PlainBlock& d) {
  std::vector<PlainBlock> powers = {sum_of(1, {{0, &q}})};
  for (int p = 1; p < 4; ++p) {
    powers.push_back(PlainBlock{q.b});
    add_product(1, powers[powers.size() - 2], q, Transposed::none, powers.back());
  }
  PlainBlock sum{q.b};
  const double factors[] = {2, 2, 2, k};
  for (int power = 1; power <= 4; ++power)
    for (int before = 0; before < power; ++before) {
      PlainBlock left{q.b};
      add_product(1, powers[static_cast<std::size_t>(before)], d, Transposed::left, left);
      add_product(factors[power - 1], left, powers[static_cast<std::size_t>(power - 1 - before)], Transposed::right,
                  sum);
    }
  return sum;
}

template <class Exec, class T>
class RotationCheck {
 public:
  using A = Acc<T>;
  RotationCheck(const CheckContext<Exec>& context, std::size_t blocks)
      : checker_(context.checker),
        options_(poet_options(context.model().linear)),
        blocks_(blocks),
        b_(options_.block),
        theta_(1, blocks * skew_elements(b_)) {
    // ||Q||_2 is some 2 b^(1/2) times the deviation of an element: 0.2.
    const double length = 0.1 / std::sqrt(static_cast<double>(b_)) * std::sqrt(3.0);
    theta_.fill([&](std::size_t i) { return static_cast<A>(length * UniformNumbers{77}(i)); });
  }

  void run(std::size_t rows) {
    Gemm<Exec> gemm(checker_.exec());
    const std::size_t n = blocks_ * b_;
    Workspace<Exec> workspace(bytes_taken<Exec>([&](Workspace<Exec>& counter) {
      for (int i = 0; i < 5; ++i) counter.template take<A>(n, b_);
    }));
    check_series(gemm, workspace);
    check_gradient(gemm, workspace);
    check_columns(gemm, rows);
  }

 private:
  std::string shape() const { return fmt::format("{} x {} x {}", blocks_, b_, b_); }
  // One rounding to S, and a few products of b terms, whose errors add up as those of a random walk.
  template <class S>
  double bound() const {
    return 2 * spacing<S> + 32 * std::sqrt(static_cast<double>(b_)) * spacing<A>;
  }

  PlainBlock skew(std::size_t block) const {
    PlainBlock q{b_};
    std::size_t at = block * skew_elements(b_);
    for (std::size_t i = 0; i < b_; ++i)
      for (std::size_t j = i + 1; j < b_; ++j, ++at) {
        q(i, j) = theta_.start(at);
        q(j, i) = -theta_.start(at);
      }
    return q;
  }

  void check_series(Gemm<Exec>& gemm, Workspace<Exec>& workspace) {
    std::vector<double> wanted;
    for (std::size_t block = 0; block < blocks_; ++block) {
      const PlainBlock g = plain_series(options_.fourth, skew(block));
      wanted.insert(wanted.end(), g.x.begin(), g.x.end());
    }
    auto g = checker_.template blank<T>(blocks_ * b_, b_);
    checker_.check({"rotations of blocks: forward", shape()}, {expected("G", g, bound<T>(), std::move(wanted))}, [&] {
      cayley_neumann<Exec, T>(checker_.exec(), gemm, workspace, options_.fourth, theta(), g.matrix());
    });
  }

  void check_gradient(Gemm<Exec>& gemm, Workspace<Exec>& workspace) {
    auto d_g = checker_.template numbers<A>(blocks_ * b_, b_), used = checker_.template blank<A>(blocks_ * b_, b_),
         d_theta = checker_.template blank<A>(1, theta_.size());
    std::vector<double> wanted;
    for (std::size_t block = 0; block < blocks_; ++block) {
      PlainBlock d{b_};
      for (std::size_t e = 0; e < d.x.size(); ++e) d.x[e] = d_g.start(block * b_ * b_ + e);
      const PlainBlock of_q = plain_gradient(options_.fourth, skew(block), d);
      for (std::size_t i = 0; i < b_; ++i)
        for (std::size_t j = i + 1; j < b_; ++j) wanted.push_back(of_q(i, j) - of_q(j, i));
    }
    checker_.check({"rotations of blocks: backward", shape()},
                   {expected("dtheta", d_theta, bound<A>(), std::move(wanted))}, [&] {
                     Kokkos::deep_copy(checker_.exec(), used.vector(), d_g.vector());  // it is used up
                     cayley_neumann_backward<Exec, A>(checker_.exec(), gemm, workspace, options_.fourth, theta(),
                                                      used.matrix(), false, d_theta.vector());
                   });
  }

  // y = x' blocks with the columns of x moved by an index that is prime to their number.
  void check_columns(Gemm<Exec>& gemm, std::size_t rows) {
    const std::size_t n = blocks_ * b_, step = n % 7 != 0 ? 7 : n % 11 != 0 ? 11 : 1;
    auto x = checker_.template numbers<T>(rows, n), blocks = checker_.template numbers<T>(n, b_),
         scratch = checker_.template blank<T>(rows, n), y = checker_.template blank<T>(rows, n);
    CheckField<Exec, std::int32_t> index(1, n);
    const auto moved = [&](std::size_t j) { return (j * step + 3) % n; };
    index.fill([&](std::size_t j) { return static_cast<std::int32_t>(moved(j)); });
    std::vector<double> wanted(rows * n, 0.0);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t j = 0; j < n; ++j) {
        const std::size_t to = moved(j);
        for (std::size_t c = 0; c < b_; ++c) wanted[r * n + to / b_ * b_ + c] += x.start(r, j) * blocks.start(to, c);
      }
    checker_.check({"moved columns times blocks", fmt::format("{} x {}, {}", rows, n, shape())},
                   {expected("y", y, bound<T>(), std::move(wanted))}, [&] {
                     put_times_blocks<Exec, T>(checker_.exec(), gemm, x.matrix(), index.vector(), Op::none,
                                               blocks.matrix(), scratch.vector(), y.matrix());
                   });
  }
  PackedBlocks<Exec, const A> theta() const { return Vector<const A, Exec>(theta_.vector()); }

  Checker<Exec>& checker_;
  PoetOptions options_;
  std::size_t blocks_, b_;
  CheckField<Exec, A> theta_;  // packed blocks of one side
};

}  // namespace

template <class Exec, class T>
void check_rotations(const CheckContext<Exec>& context) {
  const LinearOptions& linear = context.model().linear;
  if (linear.form != "poet-x" || linear.block_size > largest_checked_block) return;
  const std::size_t blocks = checked_blocks(extent(context.model().hidden_size), extent(linear.block_size));
  RotationCheck<Exec, T>(context, blocks).run(context.rows());
}

#define SESTINA_CHECK_ROTATIONS(Exec, T) template void check_rotations<Exec, T>(const CheckContext<Exec>&);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_ROTATIONS)

}  // namespace sestina
