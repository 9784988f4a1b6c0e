// Rotations of small blocks (kernels/model/block_rotations.hpp), each by one team from theta to G, and from the
// gradient of G to that of theta, in the scratch memory of the team: for a device, on which batches of so small
// products move more memory than they compute with.
#pragma once
#include "kernels/model/block_rotations.hpp"

namespace sestina::block_series {

inline constexpr std::size_t largest = 32;  // b: four of its blocks in double are 32 of 48 kB

template <class Exec, class A>
using Block = Kokkos::View<A**, Kokkos::LayoutRight, typename Exec::scratch_memory_space,
                           Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

// Returns a team for each of the blocks stacked in (n, b), with room for so many blocks of its own.
template <class Exec, class A>
Kokkos::TeamPolicy<Exec> teams(const Exec& exec, std::size_t n, std::size_t b, std::size_t room) {
  Kokkos::TeamPolicy<Exec> policy(exec, static_cast<int>(n / b), Kokkos::AUTO);
  policy.set_scratch_size(0, Kokkos::PerTeam(static_cast<int>(room * Block<Exec, A>::shmem_size(b, b))));
  return policy;
}

// Calls body(i, j) for all elements of a block, and returns when the whole team has.
template <class Member, class Body>
KOKKOS_INLINE_FUNCTION void for_block(const Member& team, std::size_t b, const Body& body) {
  Kokkos::parallel_for(Kokkos::TeamVectorRange(team, b * b), [&](std::size_t at) { body(at / b, at % b); });
  team.team_barrier();
}

// Sets q = U - U^T and q2 = q q.
template <class Exec, class A, class Member>
KOKKOS_INLINE_FUNCTION void unpack(const Member& team, const A* upper, std::size_t b, const Block<Exec, A>& q,
                                   const Block<Exec, A>& q2) {
  for_block(team, b, [&](std::size_t i, std::size_t j) {
    q(i, j) = i < j ? upper[packed_place(i, j, b)] : i > j ? -upper[packed_place(j, i, b)] : A(0);
  });
  for_block(team, b, [&](std::size_t i, std::size_t j) {
    A sum = 0;
    for (std::size_t l = 0; l < b; ++l) sum += q(i, l) * q(l, j);
    q2(i, j) = sum;
  });
}

// Sets g (n, b) as cayley_neumann does.
template <class Exec, class T>
static void forward(const Exec& exec, Acc<T> k, const PackedBlocks<Exec, const Acc<T>>& theta, Matrix<T, Exec> g) {
  using A = Acc<T>;
  using Policy = Kokkos::TeamPolicy<Exec>;
  const std::size_t b = g.extent(1), each = skew_elements(b);
  const Policy policy = teams<Exec, A>(exec, g.extent(0), b, 2);
  Kokkos::parallel_for(
      "cayley_series", policy, KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const Block<Exec, A> q(team.team_scratch(0), b, b), q2(team.team_scratch(0), b, b);
        const auto block = static_cast<std::size_t>(team.league_rank());
        unpack<Exec, A>(team, theta.block(block, each), b, q, q2);
        for_block(team, b, [&](std::size_t i, std::size_t j) {
          A sum = (i == j ? A(1) : A(0)) + 2 * q(i, j) + 2 * q2(i, j);
          for (std::size_t l = 0; l < b; ++l) sum += q2(i, l) * (2 * q(l, j) + k * q2(l, j));
          g(block * b + i, j) = T(sum);
        });
      });
}

// Sets, or adds to, d_theta as cayley_neumann_backward does; d_g stays as it is.
template <class Exec, class A>
static void backward(const Exec& exec, A k, const PackedBlocks<Exec, const A>& theta, Matrix<const A, Exec> d_g,
                     bool accumulate, const PackedBlocks<Exec, A>& d_theta) {
  using Policy = Kokkos::TeamPolicy<Exec>;
  const std::size_t b = d_g.extent(1), each = skew_elements(b);
  const Policy policy = teams<Exec, A>(exec, d_g.extent(0), b, 4);
  Kokkos::parallel_for(
      "cayley_gradient", policy, KOKKOS_LAMBDA(const typename Policy::member_type& team) {
        const Block<Exec, A> q(team.team_scratch(0), b, b), q2(team.team_scratch(0), b, b),
            d(team.team_scratch(0), b, b), n(team.team_scratch(0), b, b);
        const auto block = static_cast<std::size_t>(team.league_rank());
        for_block(team, b, [&](std::size_t i, std::size_t j) { d(i, j) = d_g(block * b + i, j); });
        unpack<Exec, A>(team, theta.block(block, each), b, q, q2);
        for_block(team, b, [&](std::size_t i, std::size_t j) {  // N, as Q^T = -Q
          A sum = 0;
          for (std::size_t l = 0; l < b; ++l) sum -= d(i, l) * q(l, j) + q(i, l) * d(l, j);
          n(i, j) = sum;
        });
        const auto of_q = [&](std::size_t i, std::size_t j) {  // d_Q
          A sum = 2 * (d(i, j) + n(i, j));
          for (std::size_t l = 0; l < b; ++l)
            sum += (2 * d(i, l) + k * n(i, l)) * q2(l, j) + (k * q2(i, l) - 2 * q(i, l)) * n(l, j);
          return sum;
        };
        A* const upper = d_theta.block(block, each);
        for_block(team, b, [&](std::size_t i, std::size_t j) {
          if (i >= j) return;
          A& to = upper[packed_place(i, j, b)];
          const A value = of_q(i, j) - of_q(j, i);
          to = accumulate ? to + value : value;
        });
      });
}

}  // namespace sestina::block_series
