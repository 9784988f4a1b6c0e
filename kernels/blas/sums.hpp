// Sums in a fixed order, whose bits depend on no number of threads: of all elements, of pieces of a pass, of the
// lines of a matrix, and of what ranks hold.
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// Sums whose bits depend on neither thread count nor layout: fixed chunks of `reduce_chunk` elements, each summed in
// double in one thread's fixed order, chunk sums added in order. Those that return a value fence.
inline constexpr std::size_t reduce_chunk = 4096;
// Returns the number of chunk sums of n numbers.
KOKKOS_INLINE_FUNCTION constexpr std::size_t chunk_count(std::size_t n) {
  return (n + reduce_chunk - 1) / reduce_chunk;
}

// Memory of each of the sums below, for n numbers.
template <class Exec>
struct SumScratch {
  SumScratch(Workspace<Exec>& workspace, std::size_t n) : chunks(workspace.template take<double>(chunk_count(n))) {}
  Vector<double, Exec> chunks;
};

// Returns the sum of squares of x (n). NaN and infinity propagate.
template <class Exec, class T>
double sum_of_squares(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&);
// Sets squares(c) to the sum of squares of chunk c of x (n): `chunk` elements each, the last one shorter. Does not
// fence.
template <class Exec, class T>
void squares_of_chunks(const Exec&, Vector<const T, Exec> x, std::size_t chunk, Vector<double, Exec> squares);
// Does it for several vectors in one launch, for a table of them that lies in the memory of the space, in the order of
// their chunks: the first one's are squares(0) and on, and all have at least one.
template <class T>
struct ChunkedVector {
  const T* values = nullptr;
  std::size_t elements = 0, chunk = 0;
  std::size_t first = 0;  // number of its first chunk
};
template <class Exec, class T>
void squares_of_chunks(const Exec&, Vector<const ChunkedVector<T>, Exec> table, Vector<double, Exec> squares);
// Returns the entry of a table with this piece: the last one whose `first` is not above it.
template <class Entry>
KOKKOS_INLINE_FUNCTION const Entry& entry_with(const Entry* table, std::size_t entries, std::size_t piece) {
  std::size_t begin = 0, end = entries;
  while (end - begin > 1) {
    const std::size_t middle = begin + (end - begin) / 2;
    (table[middle].first <= piece ? begin : end) = middle;
  }
  return table[begin];
}
// Returns the sum of x (n).
template <class Exec, class T>
double sum(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&);
// The same sums written to result (1), in the space; on a device they do not fence.
template <class Exec, class T>
void sum_of_squares_to(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&, Vector<double, Exec> result);
template <class Exec, class T>
void sum_to(const Exec&, Vector<const T, Exec> x, Workspace<Exec>&, Vector<double, Exec> result);
// Copies y (n) = T(x) with rounding, between float, double and bf16.
template <class Exec, class From, class To>
void convert(const Exec&, Vector<const From, Exec> x, Vector<To, Exec> y);

// Sums over fixed pieces of a pass that also does something else, and what is made of their total: neither depends on
// the number of threads, and nothing goes to the host. The sums above do nothing else and return to the host.

// Threads of a device that sum one piece. A host, on which tests run what is written for devices, has no teams.
template <class Space>
inline constexpr int sum_team = std::is_same_v<typename Space::memory_space, Kokkos::HostSpace> ? 1 : 128;

// Returns x^2, which is exact for fp32 and bf16.
template <class T>
KOKKOS_INLINE_FUNCTION double square(T x) {
  return static_cast<double>(static_cast<float>(x)) * static_cast<double>(static_cast<float>(x));
}

// Returns the sum of term(i), i < n, in interleaved partial sums added as a binary tree: a fixed order that vectorises.
template <class Term>
KOKKOS_INLINE_FUNCTION double lane_sum(std::size_t n, const Term& term) {
  constexpr int lanes = 16;
  if (n == 1) return term(0);
  double partial[lanes] = {};
  const std::size_t whole = n / lanes * lanes;
  for (std::size_t i = 0; i < whole; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) partial[lane] += term(i + lane);
  for (std::size_t i = whole; i < n; ++i) partial[i - whole] += term(i);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
  return partial[0];
}

// Sets sums(c) to what body(begin, count) returns for piece c of `length` of the n elements: on the host one call for a
// piece, on a device one for each element. The label has at most 15 characters.
template <class Space, class Body>
static void sum_pieces(const char* label, const Space& exec, std::size_t n, std::size_t length,
                       Vector<double, Space> sums, const Body& body) {
  const std::size_t pieces = (n + length - 1) / length;
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, pieces), [=](std::size_t piece) {
      const std::size_t begin = piece * length;
      sums(piece) = body(begin, n - begin < length ? n - begin : length);
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        label, Teams(exec, static_cast<int>(pieces), sum_team<Space>),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const std::size_t begin = team.league_rank() * length;
          double total = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, Kokkos::min(length, n - begin)),
              [&](std::size_t i, double& sum) { sum += body(begin + i, 1); }, total);
          if (team.team_rank() == 0) sums(team.league_rank()) = total;
        });
  }
}

// Calls finish(sum of term(i), i < n) once, in the space.
template <class Space, class Term, class Finish>
static void sum_all(const char* label, const Space& exec, std::size_t n, const Term& term, const Finish& finish) {
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, 1),
                         [=](std::size_t) { finish(lane_sum(n, term)); });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        label, Teams(exec, 1, sum_team<Space>), KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          double total = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, n), [&](std::size_t i, double& sum) { sum += term(i); }, total);
          if (team.team_rank() == 0) finish(total);
        });
  }
}

// Sets result (1) to the sum of the diagonal of X (d, d).
template <class Space, class T>
static void trace_to(const Space& exec, Matrix<const T, Space> x, Vector<double, Space> result) {
  sum_all(
      "trace", exec, x.extent(0), KOKKOS_LAMBDA(std::size_t i) { return static_cast<double>(x(i, i)); },
      KOKKOS_LAMBDA(double sum) { result(0) = sum; });
}

// The sums over ranks have bits that depend on nothing but the number of ranks: they follow a binary tree over the
// order of the ranks, as gradients of micro-batches are summed in deterministic mode. So a rank that holds an aligned
// part of the leaves continues the tree.

// Sets out (n) to the sum over the ranks' vectors: own (n) is that of `rank`, others ((ranks - 1) n) hold the rest in
// rank order. It is summed in Acc<T>, and out may be own. The tree over ranks is (0 + 1) + (2 + 3), ...; the right side
// of the last pairs may be missing. Each element is read once.
template <class Exec, class T>
void tree_sum(const Exec&, int rank, int ranks, Vector<const T, Exec> own, Vector<const T, Exec> others,
              Vector<T, Exec> out);

// Takes the largest in the place of the sum.
template <class Exec, class T>
void tree_max(const Exec&, int rank, int ranks, Vector<const T, Exec> own, Vector<const T, Exec> others,
              Vector<T, Exec> out);

// Sums of micro-batches that wait on levels of the tree.
template <class A>
struct WaitingSums {
  static constexpr int most = 24;
  const A* data[most] = {};
  int count = 0;
  void add(const A* sum) {
    SESTINA_REQUIRE(count < most, "more than 2^{} micro-batches", most);
    data[count++] = sum;
  }
};
// Sets out (n) to ((own + waiting 0) + waiting 1) + ... of own (n): steps of the tree in one pass. out may be own, or
// none of the others.
template <class Exec, class A>
void add_waiting(const Exec&, Vector<const A, Exec> own, const WaitingSums<A>&, Vector<A, Exec> out);

// Adds x (n) to y (n).
template <class Exec, class A>
void add_to(const Exec&, Vector<const A, Exec> x, Vector<A, Exec> y);

// The sums of squares along the rows or the columns of a matrix have a fixed order: the bits depend on neither threads
// nor, on the host, the space. Nothing fences.

// Sets sums (m) to the sum over j of (X_ij weights_j)^2 for X (m, n); weights (n), or empty, which is 1.
template <class Space>
void row_squares(const Space&, Matrix<const float, Space> x, Vector<const float, Space> weights,
                 Vector<float, Space> sums);

// Sets sums (n) to the sum over i of (X_ij weights_i)^2; weights (m) or empty. Chunks of rows are summed separately.
template <class Space>
void column_squares(const Space&, Matrix<const float, Space> x, Vector<const float, Space> weights,
                    Vector<float, Space> sums, Workspace<Space>&);
template <class Space>
struct ColumnSquaresScratch {
  static constexpr std::size_t chunk = 64;  // rows that one thread adds up
  ColumnSquaresScratch(Workspace<Space>& workspace, std::size_t rows, std::size_t cols)
      : partial(workspace.template take<float>((rows + chunk - 1) / chunk, cols)) {}
  Matrix<float, Space> partial;  // (chunks, n): the sum of each chunk
};

// The loops of both on a host, for passes that sum the lines of many matrices.

KOKKOS_INLINE_FUNCTION float line_square(float x) { return x * x; }
// Returns the sum of squares of a row; weights may be null.
KOKKOS_INLINE_FUNCTION float squares_of_row(std::size_t n, const float* __restrict x, const float* __restrict weights) {
  constexpr int lanes = 16;  // partial sums, added as a binary tree: a fixed order that vectorises
  float partial[lanes] = {};
  const std::size_t whole = n / lanes * lanes;
  for (std::size_t j = 0; j < whole; j += lanes)
    for (int lane = 0; lane < lanes; ++lane)
      partial[lane] += line_square(weights == nullptr ? x[j + lane] : x[j + lane] * weights[j + lane]);
  for (std::size_t j = whole; j < n; ++j)
    partial[j - whole] += line_square(weights == nullptr ? x[j] : x[j] * weights[j]);
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
  return partial[0];
}
// Adds the squares of a row to the sums of its columns.
KOKKOS_INLINE_FUNCTION void add_row_squares(std::size_t n, float weight, const float* __restrict x,
                                            float* __restrict sums) {
  for (std::size_t j = 0; j < n; ++j) sums[j] += line_square(x[j] * weight);
}

}  // namespace sestina
