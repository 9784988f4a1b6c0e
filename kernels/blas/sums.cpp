#include "kernels/blas/sums.hpp"

#include <algorithm>

namespace sestina {

namespace {

// Each chunk is summed in this many interleaved partial sums, added as a binary tree: a fixed order that vectorises.
constexpr int sum_lanes = 16;
static_assert(reduce_chunk % sum_lanes == 0);

struct Square {
  KOKKOS_INLINE_FUNCTION static double of(double x) { return x * x; }
};
struct Value {
  KOKKOS_INLINE_FUNCTION static double of(double x) { return x; }
};

template <class Term, class T>
KOKKOS_INLINE_FUNCTION double chunk_sum(const T* x, std::size_t n) {
  double partial[sum_lanes] = {};
  const std::size_t whole = n / sum_lanes * sum_lanes;
  for (std::size_t i = 0; i < whole; i += sum_lanes)
    for (int lane = 0; lane < sum_lanes; ++lane) partial[lane] += Term::of(static_cast<double>(x[i + lane]));
  for (std::size_t i = whole; i < n; ++i) partial[i - whole] += Term::of(static_cast<double>(x[i]));
  for (int width = sum_lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
  return partial[0];
}

template <class T>
struct Chunk {
  const T* x;
  std::size_t count;
};

// Sets partial(c) to the sum of the chunk that chunk_at(c) gives. On the host one thread sums it in the order of
// chunk_sum; on a device one team does, whose order is fixed by its size.
template <class Term, class Exec, class ChunkAt>
void sum_each_chunk(const Exec& exec, const ChunkAt& chunk_at, Vector<double, Exec> partial) {
  if constexpr (is_host<Exec>) {
    const Kokkos::RangePolicy<Exec> chunks(exec, 0, partial.extent(0));
    Kokkos::parallel_for("reduce_chunks", chunks, [=](std::size_t number) {
      const auto chunk = chunk_at(number);
      partial(number) = chunk_sum<Term>(chunk.x, chunk.count);
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Exec>;
    const Teams teams(exec, static_cast<int>(partial.extent(0)), sum_team<Exec>);
    Kokkos::parallel_for(
        "reduce_chunks", teams, KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const auto chunk = chunk_at(static_cast<std::size_t>(team.league_rank()));
          double total = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, chunk.count),
              [&](std::size_t i, double& result) { result += Term::of(static_cast<double>(chunk.x[i])); }, total);
          if (team.team_rank() == 0) partial(team.league_rank()) = total;
        });
  }
}

template <class T>
struct ChunksOfOne {
  const T* x;
  std::size_t n, length;
  KOKKOS_INLINE_FUNCTION Chunk<T> operator()(std::size_t number) const {
    const std::size_t begin = number * length;
    return {x + begin, Kokkos::min(length, n - begin)};
  }
};

template <class T>
struct ChunksOfTable {
  const ChunkedVector<T>* table;
  std::size_t entries;
  KOKKOS_INLINE_FUNCTION Chunk<T> operator()(std::size_t number) const {
    const ChunkedVector<T>& vector = entry_with(table, entries, number);
    return ChunksOfOne<T>{vector.values, vector.elements, vector.chunk}(number - vector.first);
  }
};

template <class Term, class Exec, class T>
void sum_chunks(const Exec& exec, Vector<const T, Exec> x, std::size_t length, Vector<double, Exec> partial) {
  sum_each_chunk<Term, Exec>(exec, ChunksOfOne<T>{x.data(), x.extent(0), length}, partial);
}

template <class Term, class Exec, class T>
double reduce(const Exec& exec, Vector<const T, Exec> x, Workspace<Exec>& workspace) {
  const std::size_t chunks = chunk_count(x.extent(0));
  if (chunks == 0) return 0;
  const auto frame = workspace.frame();
  const Vector<double, Exec> partial = SumScratch<Exec>(workspace, x.extent(0)).chunks;
  sum_chunks<Term, Exec, T>(exec, x, reduce_chunk, partial);
  double total = 0;
  if constexpr (is_host<Exec>) {  // summed by hand: Kokkos would allocate for the label of its own fence
    exec.fence("reduce");
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) total += partial(chunk);
  } else {
    const Kokkos::RangePolicy<Exec> one(exec, 0, 1);
    Kokkos::parallel_reduce(
        "reduce_total", one,
        KOKKOS_LAMBDA(std::size_t, double& result) {
          for (std::size_t chunk = 0; chunk < chunks; ++chunk) result += partial(chunk);
        },
        total);
  }
  return total;
}

template <class Term, class Exec, class T>
void reduce_to(const Exec& exec, Vector<const T, Exec> x, Workspace<Exec>& workspace, Vector<double, Exec> result) {
  if constexpr (is_host<Exec>) {
    result(0) = reduce<Term, Exec, T>(exec, x, workspace);
  } else {
    const std::size_t chunks = chunk_count(x.extent(0));
    const auto frame = workspace.frame();
    const Vector<double, Exec> partial = SumScratch<Exec>(workspace, x.extent(0)).chunks;
    if (chunks > 0) sum_chunks<Term, Exec, T>(exec, x, reduce_chunk, partial);
    Kokkos::parallel_for(
        "reduce_total", Kokkos::RangePolicy<Exec>(exec, 0, 1), KOKKOS_LAMBDA(std::size_t) {
          double total = 0;
          for (std::size_t chunk = 0; chunk < chunks; ++chunk) total += partial(chunk);
          result(0) = total;
        });
  }
}

// Elements per thread at a time.
template <class Exec>
constexpr std::size_t grain = is_host<Exec> ? reduce_chunk : 1;

}  // namespace

template <class Exec, class T>
double sum_of_squares(const Exec& exec, Vector<const T, Exec> x, Workspace<Exec>& workspace) {
  return reduce<Square, Exec, T>(exec, x, workspace);
}

template <class Exec, class T>
void squares_of_chunks(const Exec& exec, Vector<const T, Exec> x, std::size_t chunk, Vector<double, Exec> squares) {
  SESTINA_REQUIRE(squares.extent(0) == (x.extent(0) + chunk - 1) / chunk, "{} chunks of {} elements in {}",
                  squares.extent(0), chunk, x.extent(0));
  if (squares.extent(0) > 0) sum_chunks<Square, Exec, T>(exec, x, chunk, squares);
}

template <class Exec, class T>
void squares_of_chunks(const Exec& exec, Vector<const ChunkedVector<T>, Exec> table, Vector<double, Exec> squares) {
  if (table.extent(0) == 0) return;
  sum_each_chunk<Square, Exec>(exec, ChunksOfTable<T>{table.data(), table.extent(0)}, squares);
}

template <class Exec, class T>
double sum(const Exec& exec, Vector<const T, Exec> x, Workspace<Exec>& workspace) {
  return reduce<Value, Exec, T>(exec, x, workspace);
}

template <class Exec, class T>
void sum_of_squares_to(const Exec& exec, Vector<const T, Exec> x, Workspace<Exec>& workspace,
                       Vector<double, Exec> result) {
  reduce_to<Square, Exec, T>(exec, x, workspace, result);
}

template <class Exec, class T>
void sum_to(const Exec& exec, Vector<const T, Exec> x, Workspace<Exec>& workspace, Vector<double, Exec> result) {
  reduce_to<Value, Exec, T>(exec, x, workspace, result);
}

template <class Exec, class From, class To>
void convert(const Exec& exec, Vector<const From, Exec> x, Vector<To, Exec> y) {
  SESTINA_REQUIRE(x.extent(0) == y.extent(0), "{} elements into {}", x.extent(0), y.extent(0));
  constexpr std::size_t step = grain<Exec>;
  const Kokkos::RangePolicy<Exec> pieces(exec, 0, (x.extent(0) + step - 1) / step);
  Kokkos::parallel_for(
      "convert", pieces, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t begin = piece * step;
        const std::size_t end = Kokkos::min(begin + step, x.extent(0));
        const From* from = x.data();
        To* to = y.data();
        for (std::size_t i = begin; i < end; ++i) to[i] = static_cast<To>(from[i]);
      });
}

#define SESTINA_REDUCE(Exec, T)                                                                  \
  template double sum_of_squares<Exec, T>(const Exec&, Vector<const T, Exec>, Workspace<Exec>&); \
  template double sum<Exec, T>(const Exec&, Vector<const T, Exec>, Workspace<Exec>&);            \
  template void sum_of_squares_to<Exec, T>(const Exec&, Vector<const T, Exec>, Workspace<Exec>&, \
                                           Vector<double, Exec>);                                \
  template void sum_to<Exec, T>(const Exec&, Vector<const T, Exec>, Workspace<Exec>&, Vector<double, Exec>);
SESTINA_INSTANTIATE(SESTINA_REDUCE)
SESTINA_FOR_TYPES(SESTINA_REDUCE, ::sestina::Serial)

#define SESTINA_CHUNK_SQUARES(Exec, T)                                                                             \
  template void squares_of_chunks<Exec, T>(const Exec&, Vector<const T, Exec>, std::size_t, Vector<double, Exec>); \
  template void squares_of_chunks<Exec, T>(const Exec&, Vector<const ChunkedVector<T>, Exec>, Vector<double, Exec>);
SESTINA_INSTANTIATE(SESTINA_CHUNK_SQUARES)
SESTINA_FOR_TYPES(SESTINA_CHUNK_SQUARES, ::sestina::Serial)

#define SESTINA_CONVERT_PAIR(Exec, From, To) \
  template void convert<Exec, From, To>(const Exec&, Vector<const From, Exec>, Vector<To, Exec>);
#define SESTINA_CONVERT(Exec, T)       \
  SESTINA_CONVERT_PAIR(Exec, T, float) \
  SESTINA_CONVERT_PAIR(Exec, T, bf16)  \
  SESTINA_CONVERT_PAIR(Exec, T, double)
SESTINA_INSTANTIATE(SESTINA_CONVERT)
SESTINA_FOR_TYPES(SESTINA_CONVERT, ::sestina::Serial)

}  // namespace sestina
