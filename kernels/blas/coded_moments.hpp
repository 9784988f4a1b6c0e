// Moments in 8 bits: a block of consecutive elements shares a scale, its largest magnitude, and each element has a code
// for its share of that (Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", arXiv 2110.02861).
// Shares are those of a dynamic tree: seven decades, [10^(i - 7), 10^(i - 6)) for i = 0 ... 6, each cut into equal
// cells whose middles are what codes stand for, 2^i cells under a sign, twice as many without one; besides 0 and 1
// (there is no -1). A code is its number of cells plus the place among them, so that its highest bit says the decade.
// A pass decodes, updates and codes each block again in one go. Blocks lie in rows, from their first column on, so that
// no cut between rows cuts one.
#pragma once
#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

template <bool with_sign>
inline constexpr int highest_cells = with_sign ? 64 : 128;  // cells of the highest decade
inline constexpr int lower_decades = 6;

// share_of and code_of_share have no branch, so that loops over them vectorise.
template <bool with_sign>
KOKKOS_INLINE_FUNCTION float share_of(std::uint8_t code) {
  const int place = with_sign ? code & 0x7f : code;
  const auto at = static_cast<float>(place);
  float cells = highest_cells<with_sign>, power = 1;
  for (int i = 0; i < lower_decades; ++i) {
    const bool lower = at < cells;
    cells *= lower ? 0.5f : 1.0f;
    power *= lower ? 0.1f : 1.0f;
  }
  const float inside = power * (0.1f + 0.9f * (at - cells + 0.5f) / cells);
  if constexpr (with_sign) {
    const float magnitude = place == 0 ? static_cast<float>(code >> 7) : inside;
    return code > 0x80 ? -magnitude : magnitude;
  }
  return place < 2 ? at : inside;
}

// Returns the code of the nearest share. Without a sign, what is above 0 never becomes 0: a second moment of 0 under a
// momentum that is not 0 would make a step of momentum / eps (Li et al. 2023, "Memory efficient optimizers with 4-bit
// states").
template <bool with_sign>
KOKKOS_INLINE_FUNCTION std::uint8_t code_of_share(float share) {
  constexpr float highest = highest_cells<with_sign>;
  const float size = Kokkos::fabs(share);
  float cells = highest, inside = size, middle = 0.18f / highest;  // between the outer cells of two decades, beyond .1
  for (int i = 0; i < lower_decades; ++i) {
    const bool lower = inside < 0.1f + middle;
    inside *= lower ? 10.0f : 1.0f;
    middle *= lower ? 2.0f : 1.0f;
    cells *= lower ? 0.5f : 1.0f;
  }
  float cell = (inside - 0.1f) * cells / 0.9f;
  cell = cell > 0 ? cell : 0.0f;
  cell = cell < cells - 1 ? cell : cells - 1;
  int code = static_cast<int>(cells) + static_cast<int>(cell);
  constexpr float nearer_one = 1 - 0.225f / highest, half_of_smallest = 0.275e-6f;
  if constexpr (with_sign) {
    code |= share < 0 ? 0x80 : 0;
    code = share > nearer_one ? 0x80 : code;
    code = size < half_of_smallest ? 0 : code;
  } else {
    code = share > nearer_one ? 1 : code;
    code = share > 0 ? code : 0;
  }
  return static_cast<std::uint8_t>(code);
}

// Returns an integer whose order is that of magnitudes; a NaN is the largest, so that it is never lost.
template <class S>
KOKKOS_INLINE_FUNCTION std::uint32_t magnitude_bits(S x) {
  return Kokkos::bit_cast<std::uint32_t>(static_cast<float>(x)) & 0x7fffffffu;
}

// Returns the divisor of a block's elements: zeros and NaN have no shares, and are divided by 1.
KOKKOS_INLINE_FUNCTION float divisor_of(float scale) { return scale > 0 ? scale : 1.0f; }

inline constexpr std::size_t largest_moment_block = 2048;
constexpr std::size_t moment_blocks(std::size_t cols, std::size_t block) { return (cols + block - 1) / block; }

template <class Exec>
struct CodedMoments {
  std::size_t block = 0;                 // columns; the last block of a row may be shorter
  Matrix<std::uint8_t, Exec> m, v;       // (rows, cols)
  Matrix<float, Exec> m_scale, v_scale;  // (rows, moment_blocks)
  std::size_t count() const { return m_scale.size(); }
  void require() const {
    const std::size_t rows = m.extent(0), cols = m.extent(1);
    SESTINA_REQUIRE(block > 0 && block <= largest_moment_block && v.extent(0) == rows && v.extent(1) == cols &&
                        m_scale.extent(0) == rows && v_scale.extent(0) == rows && v_scale.size() == m_scale.size() &&
                        m_scale.extent(1) == moment_blocks(cols, block),
                    "moments ({}, {}) in blocks of {}, at most {}: {} and {} scales", rows, cols, block,
                    largest_moment_block, m_scale.size(), v_scale.size());
  }
};

// Place and length of the block with a given number, counted over all rows.
struct MomentBlock {
  std::size_t at, size;
  KOKKOS_INLINE_FUNCTION MomentBlock(std::size_t block, std::size_t number, std::size_t cols, std::size_t in_row)
      : at(number / in_row * cols + number % in_row * block),
        size(Kokkos::min(block, cols - number % in_row * block)) {}
};

namespace moments {

template <bool with_sign, class S>
void decode(std::size_t n, float scale, const std::uint8_t* __restrict codes, S* __restrict values) {
  for (std::size_t i = 0; i < n; ++i) values[i] = scale * share_of<with_sign>(codes[i]);
}
template <bool with_sign, class S>
float encode(std::size_t n, const S* __restrict values, std::uint8_t* __restrict codes) {
  std::uint32_t top = 0;
  for (std::size_t i = 0; i < n; ++i) top = Kokkos::max(top, magnitude_bits(values[i]));
  const float scale = Kokkos::bit_cast<float>(top);
  const float divisor = divisor_of(scale);
  for (std::size_t i = 0; i < n; ++i) codes[i] = code_of_share<with_sign>(static_cast<float>(values[i]) / divisor);
  return scale;
}

// Host form: a thread takes one block after another, in memory that stays in its nearest cache.
template <class S, class Exec, class Body>
static void by_thread(const char* label, const Exec& exec, const CodedMoments<Exec>& state, const Body& body) {
  const std::size_t cols = state.m.extent(1), in_row = state.m_scale.extent(1), all = state.count();
  constexpr std::size_t elements = 8192;
  const std::size_t piece = Kokkos::max<std::size_t>(elements / state.block, 1);
  const Kokkos::RangePolicy<Exec> pieces(exec, 0, (all + piece - 1) / piece);
  Kokkos::parallel_for(label, pieces, [=](std::size_t number) {
    S m[largest_moment_block], v[largest_moment_block];
    for (std::size_t b = number * piece; b < Kokkos::min(all, (number + 1) * piece); ++b) {
      const MomentBlock here(state.block, b, cols, in_row);
      std::uint8_t *m_code = state.m.data() + here.at, *v_code = state.v.data() + here.at;
      decode<true>(here.size, state.m_scale.data()[b], m_code, m);
      decode<false>(here.size, state.v_scale.data()[b], v_code, v);
      body(here.at, here.size, m, v);
      state.m_scale.data()[b] = encode<true>(here.size, m, m_code);
      state.v_scale.data()[b] = encode<false>(here.size, v, v_code);
    }
  });
}

// Codes the values that a team has updated; returns their scale.
template <bool with_sign, class Member, class Values>
KOKKOS_FUNCTION float encode_team(const Member& team, std::size_t n, const Values& values, std::uint8_t* codes) {
  std::uint32_t top = 0;
  Kokkos::parallel_reduce(
      Kokkos::TeamThreadRange(team, n),
      [&](std::size_t i, std::uint32_t& most) { most = Kokkos::max(most, magnitude_bits(values(i))); },
      Kokkos::Max<std::uint32_t>(top));
  const float scale = Kokkos::bit_cast<float>(top), divisor = divisor_of(scale);
  Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), [&](std::size_t i) {
    codes[i] = code_of_share<with_sign>(static_cast<float>(values(i)) / divisor);
  });
  return scale;
}

// Device form: a team takes each block, in the memory that its threads share.
template <class S, class Exec, class Body>
static void by_team(const char* label, const Exec& exec, const CodedMoments<Exec>& state, const Body& body) {
  using Teams = Kokkos::TeamPolicy<Exec>;
  using Member = typename Teams::member_type;
  using Scratch = Kokkos::View<S*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const std::size_t block = state.block, cols = state.m.extent(1), in_row = state.m_scale.extent(1);
  Teams teams(exec, static_cast<int>(state.count()), Kokkos::AUTO);
  teams.set_scratch_size(0, Kokkos::PerTeam(2 * Scratch::shmem_size(block)));
  Kokkos::parallel_for(
      label, with_functor(teams), KOKKOS_LAMBDA(const Member& team) {
        const auto b = static_cast<std::size_t>(team.league_rank());
        const MomentBlock here(block, b, cols, in_row);
        std::uint8_t *m_code = state.m.data() + here.at, *v_code = state.v.data() + here.at;
        float &m_scale = state.m_scale.data()[b], &v_scale = state.v_scale.data()[b];
        const Scratch m(team.team_scratch(0), block), v(team.team_scratch(0), block);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, here.size), [&](std::size_t i) {
          m(i) = m_scale * share_of<true>(m_code[i]);
          v(i) = v_scale * share_of<false>(v_code[i]);
          body(here.at + i, std::size_t{1}, &m(i), &v(i));
        });
        team.team_barrier();
        const float m_top = encode_team<true>(team, here.size, m, m_code);
        const float v_top = encode_team<false>(team, here.size, v, v_code);
        if (team.team_rank() == 0) {
          m_scale = m_top;
          v_scale = v_top;
        }
      });
}

}  // namespace moments

// Calls body(at, n, m, v), which updates n elements from `at` on, numbered by rows, and their moments m and v, which
// are in S meanwhile. On a host n is the length of a block, on a device 1.
template <class S, class Exec, class Body>
static void update_moments(const char* label, const Exec& exec, const CodedMoments<Exec>& state, const Body& body) {
  state.require();
  if (state.count() == 0) return;
  if constexpr (is_host<Exec>)
    moments::by_thread<S>(label, exec, state, body);
  else
    moments::by_team<S>(label, exec, state, body);
}

}  // namespace sestina
