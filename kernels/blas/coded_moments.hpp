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
#include "kernels/blas/sums.hpp"

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

// Where the moments of a matrix lie.
struct MomentArrays {
  std::uint8_t *m = nullptr, *v = nullptr;       // (rows, cols)
  float *m_scale = nullptr, *v_scale = nullptr;  // (rows, in_row)
  std::size_t cols = 0, block = 0;               // block: columns of one; the last of a row may be shorter
  std::size_t in_row = 0, blocks = 0;            // blocks of a row, and of all
  std::size_t first = 0;                         // in a table: number of its first block, from 0 on without gaps
};

template <class Exec>
struct CodedMoments {
  std::size_t block = 0;                 // columns; the last block of a row may be shorter
  Matrix<std::uint8_t, Exec> m, v;       // (rows, cols)
  Matrix<float, Exec> m_scale, v_scale;  // (rows, moment_blocks)
  std::size_t count() const { return m_scale.size(); }
  // Returns the arrays. Error where they do not fit together.
  MomentArrays arrays() const {
    const std::size_t rows = m.extent(0), cols = m.extent(1);
    SESTINA_REQUIRE(block > 0 && block <= largest_moment_block && v.extent(0) == rows && v.extent(1) == cols &&
                        m_scale.extent(0) == rows && v_scale.extent(0) == rows && v_scale.size() == m_scale.size() &&
                        m_scale.extent(1) == moment_blocks(cols, block),
                    "moments ({}, {}) in blocks of {}, at most {}: {} and {} scales", rows, cols, block,
                    largest_moment_block, m_scale.size(), v_scale.size());
    return {m.data(), v.data(), m_scale.data(), v_scale.data(), cols, block, m_scale.extent(1), m_scale.size()};
  }
};

// Place of a block, by its number, in its matrix and among its scales, and its length.
struct MomentBlock {
  std::size_t number, at, size;
  KOKKOS_INLINE_FUNCTION MomentBlock(const MomentArrays& of, std::size_t in_table)
      : number(in_table - of.first),
        at(number / of.in_row * of.cols + number % of.in_row * of.block),
        size(Kokkos::min(of.block, of.cols - number % of.in_row * of.block)) {}
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

// Return whose block has this number.
template <class Entry>
struct OneMatrix {
  Entry entry;
  KOKKOS_INLINE_FUNCTION const Entry& operator()(std::size_t) const { return entry; }
};
template <class Entry>
struct MatrixOfTable {
  const Entry* table;
  std::size_t entries;
  KOKKOS_INLINE_FUNCTION const Entry& operator()(std::size_t block) const { return entry_with(table, entries, block); }
};

// Host form: a thread takes one block after another, in memory that stays in its nearest cache.
template <class S, class Exec, class Find, class Body>
static void by_thread(const char* label, const Exec& exec, std::size_t block, std::size_t blocks, const Find& find,
                      const Body& body) {
  constexpr std::size_t elements = 8192;
  const std::size_t piece = Kokkos::max<std::size_t>(elements / block, 1);
  const Kokkos::RangePolicy<Exec> pieces(exec, 0, (blocks + piece - 1) / piece);
  Kokkos::parallel_for(label, pieces, [=](std::size_t number) {
    S m[largest_moment_block], v[largest_moment_block];
    for (std::size_t b = number * piece; b < Kokkos::min(blocks, (number + 1) * piece); ++b) {
      const auto& of = find(b);
      const MomentBlock here(of, b);
      std::uint8_t *m_code = of.m + here.at, *v_code = of.v + here.at;
      decode<true>(here.size, of.m_scale[here.number], m_code, m);
      decode<false>(here.size, of.v_scale[here.number], v_code, v);
      body(of, here.at, here.size, m, v);
      of.m_scale[here.number] = encode<true>(here.size, m, m_code);
      of.v_scale[here.number] = encode<false>(here.size, v, v_code);
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
template <class S, class Exec, class Find, class Body>
static void by_team(const char* label, const Exec& exec, std::size_t block, std::size_t blocks, const Find& find,
                    const Body& body) {
  using Teams = Kokkos::TeamPolicy<Exec>;
  using Member = typename Teams::member_type;
  using Scratch = Kokkos::View<S*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Teams teams(exec, static_cast<int>(blocks), Kokkos::AUTO);
  teams.set_scratch_size(0, Kokkos::PerTeam(2 * Scratch::shmem_size(block)));
  Kokkos::parallel_for(
      label, with_functor(teams), KOKKOS_LAMBDA(const Member& team) {
        const auto b = static_cast<std::size_t>(team.league_rank());
        const auto& of = find(b);
        const MomentBlock here(of, b);
        std::uint8_t *m_code = of.m + here.at, *v_code = of.v + here.at;
        float &m_scale = of.m_scale[here.number], &v_scale = of.v_scale[here.number];
        const Scratch m(team.team_scratch(0), block), v(team.team_scratch(0), block);
        Kokkos::parallel_for(Kokkos::TeamThreadRange(team, here.size), [&](std::size_t i) {
          m(i) = m_scale * share_of<true>(m_code[i]);
          v(i) = v_scale * share_of<false>(v_code[i]);
          body(of, here.at + i, std::size_t{1}, &m(i), &v(i));
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

template <class S, class Exec, class Find, class Body>
static void update(const char* label, const Exec& exec, std::size_t block, std::size_t blocks, const Find& find,
                   const Body& body) {
  if (blocks == 0) return;
  if constexpr (is_host<Exec>)
    by_thread<S>(label, exec, block, blocks, find, body);
  else
    by_team<S>(label, exec, block, blocks, find, body);
}

}  // namespace moments

// Calls body(of, at, n, m, v), which updates n elements from `at` on, numbered by rows, and their moments m and v,
// which are in S meanwhile. On a host n is the length of a block, on a device 1. of: MomentArrays, with what else the
// caller keeps of a matrix.
template <class S, class Exec, class Entry, class Body>
static void update_moments(const char* label, const Exec& exec, const Entry& of, const Body& body) {
  moments::update<S>(label, exec, of.block, of.blocks, moments::OneMatrix<Entry>{of}, body);
}
// Does so for matrices with blocks of one size in one launch, for a table of them that lies in the memory of the space.
// blocks: of all. The bits are those of one launch for each.
template <class S, class Exec, class Entry, class Body>
static void update_moments(const char* label, const Exec& exec, std::size_t block, std::size_t blocks,
                           Vector<const Entry, Exec> table, const Body& body) {
  moments::update<S>(label, exec, block, blocks, moments::MatrixOfTable<Entry>{table.data(), table.extent(0)}, body);
}

}  // namespace sestina
