#include "kernels/model/loss.hpp"

#include "kernels/blas/math.hpp"
#include "kernels/blas/rows.hpp"
#include "kernels/model/soft_cap.hpp"

namespace sestina {
namespace {

// A row of logits is read once from memory: maximum and sum of exponentials are taken block by block, the sum being
// rescaled when the maximum grows (online softmax, Milakov & Gimelshein 2018). A block stays in the nearest cache.
inline constexpr int loss_block = 2048;

// Returns the log of the sum of exponentials of x (n), and the maximum through `largest`. Any non-finite x makes it
// non-finite: 0 * x is added to each term, which -infinity would otherwise leave unseen.
template <class A, class L, class T>
KOKKOS_INLINE_FUNCTION A sum_exponentials(const L& lane, const T* x, int n, A& largest) {
  A sum = 0;
  largest = -Kokkos::Experimental::infinity_v<A>;
  for (int begin = 0; begin < n; begin += loss_block) {
    const int width = n - begin < loss_block ? n - begin : loss_block;
    const T* block = x + begin;
    const A found = max_over<A>(lane, width, [&](int j) { return A(block[j]); });
    const A top = largest < found ? found : largest;
    const A part =
        sum_over<A>(lane, width, [&](int j) { return Kokkos::fma(A(0), A(block[j]), exp_fast(A(block[j]) - top)); });
    sum = (begin == 0 ? A(0) : sum * exp_fast(largest - top)) + part;
    largest = top;
  }
  return sum;
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
        A largest;
        const A sum = sum_exponentials(lane, x, vocabulary, largest);
        const A picked = A(x[wanted]) - largest;
        sync(lane);
        if (is_first(lane)) loss(row) = Kokkos::log(sum) - picked;
        if (!want_gradient) return;
        const A scale = gradient_scale / sum;
        if (slope.bounded()) {
          const A own = slope(picked + largest);
          each(lane, vocabulary, [&](int j) { x[j] = T(exp_fast(A(x[j]) - largest) * scale * slope(A(x[j]))); });
          sync(lane);
          if (is_first(lane)) x[wanted] = T((exp_fast(picked) * scale - gradient_scale) * own);
          return;
        }
        each(lane, vocabulary, [&](int j) { x[j] = T(exp_fast(A(x[j]) - largest) * scale); });
        sync(lane);
        if (is_first(lane)) x[wanted] = T(exp_fast(picked) * scale - gradient_scale);
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
          each(lane, d, [&](int j) { out[j] = T(A(from[j]) + A(at[j])); });
        } else {
          each(lane, d, [&](int j) { out[j] = T(A(from[j])); });  // a plain copy of bf16 would not vectorise
        }
      });
}

namespace {

// Sorts rows by token, and those of one token in row order: token first + t owns rows order(start(t)) ... order(start(t
// + 1) - 1); other tokens are left out. A counting sort on one thread: n + V steps are little compared with the n * D
// sums that follow.
void sort_rows(Vector<const std::int32_t, Host> token, std::int32_t first, Vector<std::int32_t, Host> start,
               Vector<std::int32_t, Host> order) {
  const auto n = static_cast<std::int32_t>(token.extent(0)), slots = static_cast<std::int32_t>(start.extent(0));
  const auto counts = [&](std::int32_t t) { return 0 <= t && t < slots - 2; };
  for (std::int32_t t = 0; t < slots; ++t) start(t) = 0;
  for (std::int32_t row = 0; row < n; ++row)
    if (const std::int32_t t = token(row) - first; counts(t)) ++start(t + 2);  // the counts lie two slots further on
  for (std::int32_t t = 2; t < slots; ++t) start(t) += start(t - 1);
  for (std::int32_t row = 0; row < n; ++row)
    if (const std::int32_t t = token(row) - first; counts(t)) order(start(t + 1)++) = row;  // start(t + 1): end of t
}

template <class T>
void add_sorted_rows(const Host& exec, Vector<const std::int32_t, Host> token, std::int32_t first,
                     Matrix<const T, Host> dy, Matrix<Acc<T>, Host> dtable, Workspace<Host>& workspace) {
  using A = Acc<T>;
  const int d = static_cast<int>(dy.extent(1));
  const std::size_t vocabulary = dtable.extent(0);
  auto frame = workspace.frame();
  const EmbedScratch<Host> scratch(workspace, token.extent(0), vocabulary);
  const Vector<std::int32_t, Host> start = scratch.start, order = scratch.order;
  exec.fence("embed_backward");  // the calling thread sorts
  sort_rows(token, first, start, order);
  using Policy = Kokkos::RangePolicy<Host, Kokkos::Schedule<Kokkos::Dynamic>, Kokkos::IndexType<std::int32_t>>;
  const int chunk = 16;
  Kokkos::parallel_for("embed_back", Policy(exec, 0, vocabulary, Kokkos::ChunkSize(chunk)), [=](std::int32_t t) {
    A* sum = row_of(dtable, t);
    for (std::int32_t i = start(t); i < start(t + 1); ++i) {
      const T* row = row_of(dy, order(i));
      each(HostLane{}, d, [&](int j) { sum[j] += A(row[j]); });
    }
  });
}

// Lets the first row of each token on a device gather the later ones: n^2 comparisons, but no sort and no atomics.
template <class Exec, class T>
void add_matching_rows(const Exec& exec, Vector<const std::int32_t, Exec> token, std::int32_t first_token,
                       Matrix<const T, Exec> dy, Matrix<Acc<T>, Exec> dtable) {
  using A = Acc<T>;
  const auto vocabulary = static_cast<std::int32_t>(dtable.extent(0));
  const int d = static_cast<int>(dy.extent(1));
  const auto n = static_cast<std::int64_t>(token.extent(0));
  for_rows(
      "embed_back", exec, n, KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t first) {
        const std::int32_t own = token(first);
        if (own < first_token || own >= first_token + vocabulary) return;
        const int earlier =
            sum_over<int>(lane, static_cast<int>(first), [&](int r) { return token(r) == own ? 1 : 0; });
        if (earlier > 0) return;
        A* sum = row_of(dtable, own - first_token);
        for (std::int64_t row = first; row < n; ++row) {
          if (token(row) != own) continue;
          const T* part = row_of(dy, row);
          each(lane, d, [&](int j) { sum[j] += A(part[j]); });
        }
      });
}

}  // namespace

template <class Exec, class T>
void embed_backward(const Exec& exec, Vector<const std::int32_t, Exec> token, Matrix<const T, Exec> dy, int sequence,
                    Matrix<Acc<T>, Exec> dtable, Matrix<Acc<T>, Exec> dposition, Workspace<Exec>& workspace,
                    std::int32_t first) {
  using A = Acc<T>;
  const int d = static_cast<int>(dy.extent(1));
  const auto n = static_cast<std::int64_t>(dy.extent(0));
  if (n == 0) return;
  if constexpr (std::is_same_v<Exec, Host>) {
    add_sorted_rows<T>(exec, token, first, dy, dtable, workspace);
  } else {
    add_matching_rows<Exec, T>(exec, token, first, dy, dtable);
  }
  if (dposition.size() == 0) return;
  for_rows(
      "position_back", exec, n < sequence ? n : sequence, KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t at) {
        A* sum = row_of(dposition, at);
        for (std::int64_t row = at; row < n; row += sequence) {
          const T* part = row_of(dy, row);
          each(lane, d, [&](int j) { sum[j] += A(part[j]); });
        }
      });
}

#define SESTINA_LOSS(Exec, T)                                                                                      \
  template void softmax_cross_entropy<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, Acc<T>, bool,        \
                                               Matrix<T, Exec>, Vector<Acc<T>, Exec>, SoftCap);                    \
  template void embed<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, Matrix<const T, Exec>,               \
                               Matrix<const T, Exec>, int, Matrix<T, Exec>, std::int32_t);                         \
  template void embed_backward<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, Matrix<const T, Exec>, int, \
                                        Matrix<Acc<T>, Exec>, Matrix<Acc<T>, Exec>, Workspace<Exec>&, std::int32_t);
SESTINA_INSTANTIATE(SESTINA_LOSS)

}  // namespace sestina
