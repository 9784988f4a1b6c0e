#include "kernels/model/loss.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/blas/math.hpp"
#include "kernels/blas/row_elements.hpp"
#include "kernels/model/soft_cap.hpp"

namespace sestina {
namespace {

// A row of logits is read once from memory: maximum and sum of exponentials are taken block by block, the sum being
// rescaled when the maximum grows (online softmax, Milakov & Gimelshein 2018). A block stays in the nearest cache.
inline constexpr int most_blocks = 64;
KOKKOS_INLINE_FUNCTION int block_width(int n) {
  const int even = (n + most_blocks - 1) / most_blocks;
  return even > 2048 ? even : 2048;
}

// The sum of exponentials of a row relative to the largest number in it. Any non-finite number makes the sum
// non-finite: 0 * x is added to each term, which -infinity would otherwise leave unseen.
template <class A>
struct ExponentialSum {
  A sum = 0, largest = -Kokkos::Experimental::infinity_v<A>;

  KOKKOS_FORCEINLINE_FUNCTION void add(A x) {
    if (x > largest) {
      sum = Kokkos::fma(A(0), x, sum * exp_below_89(largest - x) + A(1));
      largest = x;
    } else {
      sum += Kokkos::fma(A(0), x, exp_below_89(x - largest));
    }
  }
  // Adds the sum of other elements; without elements it is 0.
  KOKKOS_FORCEINLINE_FUNCTION void join(const ExponentialSum& other) {
    if (other.sum == A(0)) return;
    const A top = largest < other.largest ? other.largest : largest;
    sum = (sum == A(0) ? A(0) : sum * exp_below_89(largest - top)) + other.sum * exp_below_89(other.largest - top);
    largest = top;
  }
};

// Returns that of x (n). term(j, top) is e^(x_j - top) + 0 x_j, and may leave it somewhere; block_ends(b, top) tells
// with which top those of block b were taken.
template <class A, class L, class T, class Term, class BlockEnds>
KOKKOS_INLINE_FUNCTION ExponentialSum<A> sum_exponentials(const L& lane, const T* x, int n, const Term& term,
                                                          const BlockEnds& block_ends) {
  ExponentialSum<A> found;
  const int width = block_width(n);
  for (int begin = 0, block = 0; begin < n; begin += width, ++block) {
    const int count = n - begin < width ? n - begin : width;
    const A most = max_over<A>(lane, count, [&](int j) { return A(x[begin + j]); });
    const A top = found.largest < most ? most : found.largest;
    const A part = sum_over<A>(lane, count, [&](int j) { return term(begin + j, top); });
    found.sum = (begin == 0 ? A(0) : found.sum * exp_below_89(found.largest - top)) + part;
    found.largest = top;
    block_ends(block, top);
  }
  return found;
}
template <class A, class T>
KOKKOS_INLINE_FUNCTION ExponentialSum<A> sum_exponentials(const HostLane& lane, const T* x, int n) {
  return sum_exponentials<A>(
      lane, x, n, [&](int j, A top) { return Kokkos::fma(A(0), A(x[j]), exp_below_89(A(x[j]) - top)); }, [](int, A) {});
}
// On a device each thread has a sum of its own elements, which are joined once: a row is read once, with one barrier.
template <class A, class Member, class T>
KOKKOS_INLINE_FUNCTION ExponentialSum<A> sum_exponentials(const Member& team, const T* x, int n) {
  return reduce_each<ExponentialSum<A>>(team, n, x);
}

// Whether a row may keep its exponentials for the gradient: on a host it stays in a cache, and only numbers of the type
// of sums are kept unrounded.
template <class L, class T>
inline constexpr bool keeps_exponentials = std::is_same_v<L, HostLane>&& std::is_same_v<T, Acc<T>>;

// Turns x into the gradient, without what the wanted token's lacks, and returns what the loss is made of. Each
// exponential is taken once and left in x, relative to the largest number up to its block.
template <class A, class L, class T>
KOKKOS_INLINE_FUNCTION ExponentialSum<A> softmax_in_place(const L& lane, T* x, int n, A gradient_scale) {
  A tops[most_blocks];
  const ExponentialSum<A> found = sum_exponentials<A>(
      lane, x, n,
      [&](int j, A top) {
        const A term = Kokkos::fma(A(0), A(x[j]), exp_below_89(A(x[j]) - top));
        x[j] = T(term);
        return term;
      },
      [&](int block, A top) { tops[block] = top; });
  const A scale = gradient_scale / found.sum;
  const int width = block_width(n);
  for (int begin = 0; begin < n; begin += width) {
    const A factor = exp_below_89(tops[begin / width] - found.largest) * scale;
    each(lane, n - begin < width ? n - begin : width, [&](int j) { x[begin + j] = T(A(x[begin + j]) * factor); });
  }
  return found;
}

}  // namespace

template <class Exec, class T>
void softmax_cross_entropy(const Exec& exec, Vector<const std::int32_t, Exec> target, Acc<T> gradient_scale,
                           bool want_gradient, Matrix<T, Exec> logits, Vector<Acc<T>, Exec> loss, SoftCap cap) {
  using A = Acc<T>;
  const CapSlope<A> slope(cap);
  const int vocabulary = static_cast<int>(logits.extent(1));
  for_rows(
      "cross_entropy", exec, logits.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        T* x = row_of(logits, row);
        const int wanted = target(row);
        if (wanted < 0) {
          if (is_first(lane)) loss(row) = A(0);
          if (want_gradient) each(lane, vocabulary, [&](int j) { x[j] = T(A(0)); });
          return;
        }
        if (keeps_exponentials<RowLane<Exec>, T> && want_gradient && !slope.bounded()) {
          const A picked = A(x[wanted]);
          const ExponentialSum<A> found = softmax_in_place(lane, x, vocabulary, gradient_scale);
          loss(row) = Kokkos::log(found.sum) - (picked - found.largest);
          x[wanted] = T(A(x[wanted]) - gradient_scale);
          return;
        }
        const ExponentialSum<A> found = sum_exponentials<A>(lane, x, vocabulary);
        const A largest = found.largest, picked = A(x[wanted]) - largest;
        sync(lane);
        if (is_first(lane)) loss(row) = Kokkos::log(found.sum) - picked;
        if (!want_gradient) return;
        const A scale = gradient_scale / found.sum;
        if (slope.bounded()) {
          const A own = slope(picked + largest);
          each_element(
              lane, vocabulary, [&](T& z) { z = T(exp_below_89(A(z) - largest) * scale * slope(A(z))); }, x);
          sync(lane);
          if (is_first(lane)) x[wanted] = T((exp_below_89(picked) * scale - gradient_scale) * own);
          return;
        }
        each_element(
            lane, vocabulary, [&](T& z) { z = T(exp_below_89(A(z) - largest) * scale); }, x);
        sync(lane);
        if (is_first(lane)) x[wanted] = T(exp_below_89(picked) * scale - gradient_scale);
      });
}

template <class Exec, class T>
void embed(const Exec& exec, Vector<const std::int32_t, Exec> token, Matrix<const T, Exec> table,
           Matrix<const T, Exec> position, int sequence, Matrix<T, Exec> y, std::int32_t first) {
  using A = Acc<T>;
  const int d = static_cast<int>(y.extent(1));
  const auto vocabulary = static_cast<std::int32_t>(table.extent(0));
  const bool adds = position.size() > 0;
  for_rows(
      "embed", exec, y.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const std::int32_t word = token(row) - first;
        T* out = row_of(y, row);
        if (word < 0 || word >= vocabulary) {
          const T* at = adds ? row_of(position, row % sequence) : nullptr;
          each(lane, d, [&](int j) { out[j] = adds ? at[j] : T(A(0)); });
          return;
        }
        const T* from = row_of(table, word);
        if (adds) {
          const T* at = row_of(position, row % sequence);
          each_element(
              lane, d, [](const T& a, const T& b, T& to) { to = T(A(a) + A(b)); }, from, at, Written(out));
        } else {
          // A plain copy of bf16 would not vectorise on a host.
          each_element(
              lane, d, [](const T& a, T& to) { to = T(A(a)); }, from, Written(out));
        }
      });
}

// A radix sort of digits of 11 bits, on one thread: some ten steps a row are little compared with the sums of D.
void sort_rows(std::span<const std::int32_t> token, std::span<std::int32_t> order, std::span<std::int32_t> scratch) {
  constexpr int bits = 11;
  std::iota(order.begin(), order.end(), 0);
  const std::int32_t largest = token.empty() ? 0 : *std::max_element(token.begin(), token.end());
  for (int shift = 0; shift < 31 && (largest >> shift) > 0; shift += bits) {
    const auto digit = [&](std::int32_t row) {
      return static_cast<std::size_t>(token[static_cast<std::size_t>(row)] >> shift) & ((1U << bits) - 1);
    };
    std::array<std::int32_t, (1U << bits) + 1> next{};  // places of the digits
    for (const std::int32_t row : order) ++next[digit(row) + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (const std::int32_t row : order) scratch[static_cast<std::size_t>(next[digit(row)]++)] = row;
    std::copy(scratch.begin(), scratch.end(), order.begin());
  }
}

// The first of the sorted rows of a token gathers the others; behind these rows each position gathers its own.
template <class Exec, class T>
void embed_backward(const Exec& exec, const TokenRows<Exec>& rows, Matrix<const T, Exec> dy, int sequence,
                    Matrix<Acc<T>, Exec> dtable, Matrix<Acc<T>, Exec> dposition, std::int32_t first) {
  using A = Acc<T>;
  const int d = static_cast<int>(dy.extent(1));
  const auto vocabulary = static_cast<std::int32_t>(dtable.extent(0));
  const auto n = static_cast<std::int64_t>(dy.extent(0));
  if (n == 0) return;
  const std::int64_t positions = dposition.size() == 0 ? 0 : n < sequence ? n : sequence;
  const Vector<const std::int32_t, Exec> token = rows.token, order = rows.order;
  for_rows(
      "embed_back", exec, n + positions, KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t at) {
        const auto add_row = [&](A* sum, std::int64_t row) {
          const T* part = row_of(dy, row);
          each_element(
              lane, d, [](const T& a, A& to) { to += A(a); }, part, sum);
          sync(lane);
        };
        if (at >= n) {
          A* sum = row_of(dposition, at - n);
          for (std::int64_t row = at - n; row < n; row += sequence) add_row(sum, row);
          return;
        }
        const std::int32_t own = token(order(at)), word = own - first;
        if (word < 0 || word >= vocabulary || (at > 0 && token(order(at - 1)) == own)) return;
        A* sum = row_of(dtable, word);
        for (std::int64_t i = at; i < n && token(order(i)) == own; ++i) add_row(sum, order(i));
      });
}

#define SESTINA_LOSS(Exec, T)                                                                               \
  template void softmax_cross_entropy<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, Acc<T>, bool, \
                                               Matrix<T, Exec>, Vector<Acc<T>, Exec>, SoftCap);             \
  template void embed<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, Matrix<const T, Exec>,        \
                               Matrix<const T, Exec>, int, Matrix<T, Exec>, std::int32_t);                  \
  template void embed_backward<Exec, T>(const Exec&, const TokenRows<Exec>&, Matrix<const T, Exec>, int,    \
                                        Matrix<Acc<T>, Exec>, Matrix<Acc<T>, Exec>, std::int32_t);
SESTINA_INSTANTIATE(SESTINA_LOSS)

}  // namespace sestina
