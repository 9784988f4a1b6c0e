// Passes over many arrays in one launch: a table, which lies in the memory of the space (table_in_space), names them,
// and each is cut into pieces that are numbered through the table.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {

// A piece: elements at, ..., at + count of an entry of a table. Entries have `elements` elements and number their
// pieces of `length` elements from `first` on.
template <std::size_t length, class Entry>
struct TablePiece {
  const Entry& of;
  std::size_t at, count;
  KOKKOS_INLINE_FUNCTION TablePiece(const Entry* table, std::size_t entries, std::size_t piece)
      : of(entry_with(table, entries, piece)),
        at((piece - of.first) * length),
        count(Kokkos::min(length, of.elements - at)) {}
};

// Calls body(entry, at, count) for each piece: on the host for all of it at once; on a device for single elements, by a
// team for each piece, which looks up once what it is of.
template <std::size_t length, class Space, class Entry, class Body>
static void for_pieces(const char* label, const Space& exec, Vector<const Entry, Space> table, std::size_t pieces,
                       const Body& body) {
  const Entry* const entries = table.data();
  const std::size_t count = table.extent(0);
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, pieces), [=](std::size_t number) {
      const TablePiece<length, Entry> piece(entries, count, number);
      body(piece.of, piece.at, piece.count);
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        label, Teams(exec, static_cast<int>(pieces), sum_team<Space>),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const TablePiece<length, Entry> piece(entries, count, static_cast<std::size_t>(team.league_rank()));
          Kokkos::parallel_for(Kokkos::TeamThreadRange(team, piece.count),
                               [&](std::size_t i) { body(piece.of, piece.at + i, 1); });
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
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, pieces), [=](std::size_t number) {
      const TablePiece<length, Entry> piece(entries, count, number);
      sums(number) = body(piece.of, piece.at, piece.count);
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        label, Teams(exec, static_cast<int>(pieces), sum_team<Space>),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const auto number = static_cast<std::size_t>(team.league_rank());
          const TablePiece<length, Entry> piece(entries, count, number);
          double total = 0;
          Kokkos::parallel_reduce(
              Kokkos::TeamThreadRange(team, piece.count),
              [&](std::size_t i, double& sum) { sum += body(piece.of, piece.at + i, 1); }, total);
          if (team.team_rank() == 0) sums(number) = total;
        });
  }
}

// The numbers of an entry among those of all entries: `count` of them, from `first` on.
struct EntryRange {
  std::size_t first = 0, count = 0;
};

// Calls finish(i, totals) once for entry i, in the space: the sums of its range(entry) of each of `sums`.
template <std::size_t n, class Space, class Entry, class Range, class Finish>
static void total_entries(const char* label, const Space& exec, Vector<const Entry, Space> table,
                          const Kokkos::Array<const double*, n>& sums, const Range& range, const Finish& finish) {
  const Entry* const entries = table.data();
  const std::size_t count = table.extent(0);
  if constexpr (is_host<Space>) {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<Space>(exec, 0, count), [=](std::size_t i) {
      const EntryRange own = range(entries[i]);
      Kokkos::Array<double, n> totals;
      for (std::size_t s = 0; s < n; ++s)
        totals[s] = lane_sum(own.count, [x = sums[s] + own.first](std::size_t k) { return x[k]; });
      finish(i, totals);
    });
  } else {
    using Teams = Kokkos::TeamPolicy<Space>;
    Kokkos::parallel_for(
        label, Teams(exec, static_cast<int>(count), sum_team<Space>),
        KOKKOS_LAMBDA(const typename Teams::member_type& team) {
          const auto i = static_cast<std::size_t>(team.league_rank());
          const EntryRange own = range(entries[i]);
          Kokkos::Array<double, n> totals;
          for (std::size_t s = 0; s < n; ++s) {
            const double* const x = sums[s] + own.first;
            Kokkos::parallel_reduce(
                Kokkos::TeamThreadRange(team, own.count), [&](std::size_t k, double& sum) { sum += x[k]; }, totals[s]);
          }
          if (team.team_rank() == 0) finish(i, totals);
        });
  }
}

}  // namespace sestina
