// Sums over fixed pieces of a pass that also does something else, and what is made of their total: neither depends on
// the number of threads, and nothing goes to the host. The sums of reduce.hpp do nothing else and return to the host.
#pragma once
#include "kernels/blas/exec.hpp"

namespace sestina {

// Threads of a device that sum one piece. Those of a host, on which tests run what is written for devices, have no
// teams.
template <class Space>
inline constexpr int sum_team = std::is_same_v<typename Space::memory_space, Kokkos::HostSpace> ? 1 : 128;

// x^2, which is exact for fp32 and bf16.
template <class T>
KOKKOS_INLINE_FUNCTION double square(T x) {
  return static_cast<double>(static_cast<float>(x)) * static_cast<double>(static_cast<float>(x));
}

// Sum of term(i), i < n: in interleaved partial sums, added as a binary tree, which is a fixed order that vectorises.
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

// sums(c) = what body(begin, count) returns for piece c of `length` of the n elements: on the host one call for a
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

// finish(sum of term(i), i < n), called once, in the space.
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

}  // namespace sestina
