// Passes over many arrays in one launch: a table, which lies in the memory of the space (table_in_space), names them,
// and each is cut into pieces that are numbered through the table.
#pragma once
#include <algorithm>

#include "kernels/blas/exec.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {

// Calls body(entry, at, count) for elements at, ..., at + count of the entries of a table, which have `elements`
// elements and number their pieces of `length` elements from `first` on: on the host for a piece at once; on a device
// for single elements, by a team for each piece, which looks up once what it is of.
template <std::size_t length, class Space, class Entry, class Body>
static void for_pieces(const char* label, const Space& exec, Vector<const Entry, Space> table, std::size_t pieces,
                       const Body& body) {
  const Entry* const entries = table.data();
  const std::size_t count = table.extent(0);
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, pieces), [=](std::size_t piece) {
      const Entry& of = entry_with(entries, count, piece);
      const std::size_t at = (piece - of.first) * length;
      body(of, at, std::min(length, of.elements - at));
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        label, Teams(exec, static_cast<int>(pieces), sum_team<Space>),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const auto piece = static_cast<std::size_t>(team.league_rank());
          const Entry& of = entry_with(entries, count, piece);
          const std::size_t at = (piece - of.first) * length, left = of.elements - at;
          Kokkos::parallel_for(Kokkos::TeamThreadRange(team, left < length ? left : length),
                               [&](std::size_t i) { body(of, at + i, 1); });
        });
  }
}

// Sets sums(piece) to what body(entry, at, count) returns for each of these pieces: the sums of sum_pieces.
template <std::size_t length, class Space, class Entry, class Body>
static void sum_table_pieces(const char* label, const Space& exec, Vector<const Entry, Space> table,
                             Vector<double, Space> sums, const Body& body) {
  const Entry* const entries = table.data();
  const std::size_t count = table.extent(0), pieces = sums.extent(0);
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, pieces), [=](std::size_t piece) {
      const Entry& of = entry_with(entries, count, piece);
      const std::size_t at = (piece - of.first) * length;
      sums(piece) = body(of, at, std::min(length, of.elements - at));
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        label, Teams(exec, static_cast<int>(pieces), sum_team<Space>),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const auto piece = static_cast<std::size_t>(team.league_rank());
          const Entry& of = entry_with(entries, count, piece);
          const std::size_t at = (piece - of.first) * length;
          double total = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, Kokkos::min(length, of.elements - at)),
              [&](std::size_t i, double& sum) { sum += body(of, at + i, 1); }, total);
          if (team.team_rank() == 0) sums(piece) = total;
        });
  }
}

}  // namespace sestina
