// How row kernels walk a matrix on either space: a row (or a fixed chunk of rows) belongs to one host thread, which
// vectorises along it, or to one device team, whose threads share it. Kernels are written once against a RowLane.
#pragma once
#include <type_traits>

#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

struct HostLane {};
template <class Exec>
using RowLane = std::conditional_t<is_host<Exec>, HostLane, typename Kokkos::TeamPolicy<Exec>::member_type>;

// Threads of a team. A host, on which tests run what is written for devices, has no teams.
template <class Exec>
inline constexpr int row_team = std::is_same_v<typename Exec::memory_space, Kokkos::HostSpace> ? 1 : 128;

// Calls body(j) for j in [0, n), in any order; iterations must not depend on each other.
template <class Body>
KOKKOS_FORCEINLINE_FUNCTION void each(const HostLane&, int n, const Body& body) {
#pragma omp simd
  for (int j = 0; j < n; ++j) body(j);
}
template <class Member, class Body>
KOKKOS_FORCEINLINE_FUNCTION void each(const Member& team, int n, const Body& body) {
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, n), body);
}

// Returns the sum of term(j) over [0, n) to the whole lane. It is also a barrier of the lane.
template <class A, class Term>
KOKKOS_FORCEINLINE_FUNCTION A sum_over(const HostLane&, int n, const Term& term) {
  A sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int j = 0; j < n; ++j) sum += term(j);
  return sum;
}
template <class A, class Member, class Term>
KOKKOS_FORCEINLINE_FUNCTION A sum_over(const Member& team, int n, const Term& term) {
  A sum = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, n), [&](int j, A& part) { part += term(j); }, sum);
  return sum;
}

// Returns the largest of term(j), or -infinity for n = 0; a NaN may be passed over.
template <class A, class Term>
KOKKOS_FORCEINLINE_FUNCTION A max_over(const HostLane&, int n, const Term& term) {
  A largest = -Kokkos::Experimental::infinity_v<A>;
#pragma omp simd reduction(max : largest)
  for (int j = 0; j < n; ++j) {
    const A value = term(j);
    largest = largest < value ? value : largest;
  }
  return largest;
}
template <class A, class Member, class Term>
KOKKOS_FORCEINLINE_FUNCTION A max_over(const Member& team, int n, const Term& term) {
  A largest = -Kokkos::Experimental::infinity_v<A>;
  Kokkos::parallel_reduce(
      Kokkos::TeamVectorRange(team, n),
      [&](int j, A& part) {
        const A value = term(j);
        part = part < value ? value : part;
      },
      Kokkos::Max<A>(largest));
  return largest;
}

// Returns whether the calling thread writes the values that belong to the row as a whole.
KOKKOS_FORCEINLINE_FUNCTION bool is_first(const HostLane&) { return true; }
template <class Member>
KOKKOS_FORCEINLINE_FUNCTION bool is_first(const Member& team) {
  return team.team_rank() == 0;
}

// Makes what the lane's threads wrote visible to all of them.
KOKKOS_FORCEINLINE_FUNCTION void sync(const HostLane&) {}
template <class Member>
KOKKOS_FORCEINLINE_FUNCTION void sync(const Member& team) {
  team.team_barrier();
}

// Unpacks a policy's argument into (lane, row).
template <class Body>
struct RowBody {
  Body body;
  KOKKOS_FUNCTION void operator()(std::int64_t row) const { body(HostLane{}, row); }
};
template <class Body>
struct TeamBody {
  Body body;
  template <class Member>
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    body(team, static_cast<std::int64_t>(team.league_rank()));
  }
};

// Calls body(lane, row) for every row in [0, n).
template <class Exec, class Body>
static void for_rows(const char* label, const Exec& exec, std::int64_t n, const Body& body) {
  if (n == 0) return;
  if constexpr (is_host<Exec>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, n),
                         RowBody<Body>{body});
  } else {
    const Kokkos::TeamPolicy<Exec> teams(exec, static_cast<int>(n), row_team<Exec>);
    Kokkos::parallel_for(label, with_functor(teams), TeamBody<Body>{body});
  }
}

// Returns a pointer to the first element of a row; valid for zero-width rows too.
template <class View>
KOKKOS_FORCEINLINE_FUNCTION auto* row_of(const View& view, std::int64_t row) {
  return view.data() + row * static_cast<std::int64_t>(view.stride(0));
}

// Sums over rows are taken over chunks of this many rows, each by one lane in row order, and the chunks are added in
// order: the bits depend on neither threads nor space.
inline constexpr std::int64_t row_chunk = 32;
inline std::int64_t row_chunks(std::int64_t n) { return (n + row_chunk - 1) / row_chunk; }

// The sums of the chunks of n rows, d wide.
template <class Exec, class A>
struct RowSumScratch {
  RowSumScratch(Workspace<Exec>& workspace, std::size_t n, std::size_t d)
      : partial(workspace.template take<A>(static_cast<std::size_t>(row_chunks(static_cast<std::int64_t>(n))), d)) {}
  Matrix<A, Exec> partial;  // (chunks, d)
};

// A vector to which sums over rows go: they are added to what it has, or take its place.
template <class A, class Exec>
struct RowTotal {
  Vector<A, Exec> values;
  bool adds = true;
  RowTotal(const Vector<A, Exec>& total, bool adds_to_it = true) : values(total), adds(adds_to_it) {}
};

// Sums the rows of partial (chunks, D), in order, for a total (D); partial is used up. With no chunks the sum is 0.
template <class Exec, class A>
static void add_chunks(const Exec& exec, Matrix<A, Exec> partial, std::type_identity_t<RowTotal<A, Exec>> total) {
  constexpr std::int64_t width = 256;
  const auto chunks = static_cast<std::int64_t>(partial.extent(0)), d = static_cast<std::int64_t>(partial.extent(1));
  const bool adds = total.adds;
  if (chunks == 0 && adds) return;
  A* const totals = total.values.data();
  for_rows(
      "add_chunks", exec, (d + width - 1) / width, KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t block) {
        const std::int64_t begin = block * width;
        const int n = static_cast<int>(d - begin < width ? d - begin : width);
        A* sum = partial.data() + begin;
        for (std::int64_t c = 1; c < chunks; ++c) {
          const A* part = partial.data() + c * d + begin;
          each(lane, n, [&](int j) { sum[j] += part[j]; });
        }
        A* out = totals + begin;
        each(lane, n, [&](int j) { out[j] = adds ? out[j] + sum[j] : chunks > 0 ? sum[j] : 0; });
      });
}

}  // namespace sestina
