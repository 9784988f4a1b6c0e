// Vectors of attention_bf16.hpp: exponential and logarithm, transposed blocks, packing. For twins compiled with
// AVX-512 and its bf16; everything is static, since no other source may call what they compile.
#pragma once
#include <immintrin.h>

#include "kernels/model/host/attention_bf16.hpp"

namespace sestina::host::attention_bf16 {

inline constexpr int lanes = 16;

template <class N>
static inline N least(N a, N b) {
  return b < a ? b : a;
}
static inline int round_up(int n, int step) { return (n + step - 1) / step * step; }
static inline int width_of(int head_dim) { return round_up(head_dim, group); }
static inline int padded(int sequence) { return round_up(sequence, key_block); }
static inline std::size_t panel_size(int sequence, int head_dim) {
  return static_cast<std::size_t>(padded(sequence)) * static_cast<std::size_t>(width_of(head_dim));
}

// Memory that is handed out in turn, in multiples of 64 bytes; without a base it is counted alone.
struct Room {
  char* base;
  std::size_t used;
};
template <class T>
static inline T* take(Room& room, int n) {
  T* const at = room.base != nullptr ? reinterpret_cast<T*>(room.base + room.used) : nullptr;
  room.used += (static_cast<std::size_t>(n) * sizeof(T) + 63) / 64 * 64;
  return at;
}

template <class T>
static inline T* row_at(const HeadRows<T>& rows, std::int64_t r) {
  return rows.data + r * rows.stride;
}
// Returns the rows of head i, from row `first` on.
template <class T>
static inline HeadRows<T> head_at(const HeadRows<T>& rows, int i, int head_dim, std::int64_t first) {
  return {row_at(rows, first) + static_cast<std::int64_t>(i) * head_dim, rows.stride};
}

// Returns 2^x, with a relative error below 4e-7; 2^0 is 1, 2^-inf is 0, NaN stays NaN. x = n + r with 0 <= r < 1, and
// 2^r is a polynomial through its values at Chebyshev nodes (error 2.3e-7 before rounding).
static inline __m512 exp2_of(__m512 x) {
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_set1_ps(0x1.d4cf66p-10f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.2d720ep-7f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.c7f14ep-5f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.ebf1c0p-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0x1.62e43cp-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);  // p 2^floor(x)
}

// Returns log2(x) for x > 0, with an absolute error below 2e-7: x = 2^e m with 1/sqrt 2 <= m < sqrt 2, and
// ln m = 2 artanh((m - 1) / (m + 1)).
static inline __m512 log2_of(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_nan), e = _mm512_getexp_ps(x);
  const __mmask16 large = _mm512_cmp_ps_mask(m, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
  m = _mm512_mask_mul_ps(m, large, m, _mm512_set1_ps(0.5f));
  e = _mm512_mask_add_ps(e, large, e, one);
  const __m512 s = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one)), t = _mm512_mul_ps(s, s);
  __m512 p = _mm512_set1_ps(1.0f / 9);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.0f / 7));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.0f / 5));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.0f / 3));
  p = _mm512_fmadd_ps(p, t, one);
  constexpr float twice_log2_e = 2.8853900817779268f;
  return _mm512_fmadd_ps(_mm512_mul_ps(p, s), _mm512_set1_ps(twice_log2_e), e);
}

// Transposes a 16 x 16 block of 32-bit elements: pairs, then pairs of pairs, then quarters of vectors.
static inline void transpose(__m512i (&x)[lanes]) {
  __m512i y[lanes];
  for (int i = 0; i < lanes; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < lanes; i += 4) {
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + j + 2]);
    }
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88), b = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd), d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    y[i] = _mm512_shuffle_i32x4(a, b, 0x88);
    y[i + 8] = _mm512_shuffle_i32x4(a, b, 0xdd);
    y[i + 4] = _mm512_shuffle_i32x4(c, d, 0x88);
    y[i + 12] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
  for (int i = 0; i < lanes; ++i) x[i] = y[i];
}

// Returns the first n elements of 32 (all if there are more), and zeros for those that are not there.
static inline __m512i load_row(const Bits* from, int n) {
  if (n >= 32) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16(n <= 0 ? 0u : (1u << n) - 1u, from);
}

// Rows of one head, `count` of them with head_dim elements: whatever is read beyond them is zero.
struct PackedRows {
  HeadRows<const Bits> rows;
  int count, head_dim;

  __m512i load(int row, int column) const {
    return row < count ? load_row(row_at(rows, row) + column, head_dim - column) : _mm512_setzero_si512();
  }
  // Interleaves 32 elements of a row with those of the next one: the first 16 columns in x, the others in y.
  void load_pair(int row, int column, __m512i& x, __m512i& y) const {
    const __m512i a = load(row, column), b = load(row + 1, column);
    const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);  // by quarters of a vector
    const __m512i first = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0),
                  second = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
    x = _mm512_permutex2var_epi64(low, first, high);
    y = _mm512_permutex2var_epi64(low, second, high);
  }
};

// Packs rows [0, n) as they are.
static inline void pack_rows(const PackedRows& from, int n, int width, Bits* to) {
  for (int row = 0; row < n; ++row)
    for (int d = 0; d < width; d += group) _mm512_store_si512(to + row * width + d, from.load(row, d));
}

// Packs rows [0, n), in blocks of key_block, as columns.
static inline void pack_columns(const PackedRows& from, int n, int width, Bits* to) {
  for (int row = 0; row < n; row += group) {
    Bits* block = to + row / key_block * key_block * width + row % key_block;
    for (int d = 0; d < width; d += group) {
      __m512i x[lanes], y[lanes];
      for (int i = 0; i < lanes; ++i) from.load_pair(row + 2 * i, d, x[i], y[i]);
      transpose(x);
      transpose(y);
      for (int i = 0; i < lanes; ++i) {
        _mm512_store_si512(block + (d + i) * key_block, x[i]);
        _mm512_store_si512(block + (d + lanes + i) * key_block, y[i]);
      }
    }
  }
}

// Packs rows [0, n) as the columns of a right operand: pairs along the head's elements, strips of 16 rows.
static inline void pack_pairs_along(const PackedRows& from, int n, int width, Bits* to) {
  for (int row = 0; row < n; row += lanes)
    for (int d = 0; d < width; d += group) {
      __m512i x[lanes];
      for (int i = 0; i < lanes; ++i) x[i] = from.load(row + i, d);
      transpose(x);
      for (int i = 0; i < lanes; ++i) _mm512_store_si512(to + row * width + (d / 2 + i) * 2 * lanes, x[i]);
    }
}

// Packs rows [0, n) as the rows of a right operand of depth `depth`: pairs of rows, strips of 16 of the head's
// elements.
static inline void pack_pairs_across(const PackedRows& from, int n, int width, int depth, Bits* to) {
  for (int row = 0; row < n; row += 2)
    for (int d = 0; d < width; d += group) {
      __m512i x, y;
      from.load_pair(row, d, x, y);
      _mm512_store_si512(to + d * depth + row * lanes, x);
      _mm512_store_si512(to + (d + lanes) * depth + row * lanes, y);
    }
}

// Rounds two rows of 16 to bf16: a is the lower half of the result.
static inline __m512i round_rows(__m512 a, __m512 b) { return (__m512i)_mm512_cvtne2ps_pbh(b, a); }

// Interleaves the two halves: element i of the lower one comes before that of the upper one.
static inline __m512i interleave_halves(__m512i x) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, x);
}

static inline void store_row(__m512 x, int n, Bits* to) {
  const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(x);
  if (n >= lanes)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), rounded);
  else if (n > 0)
    _mm256_mask_storeu_epi16(to, static_cast<__mmask16>((1u << n) - 1u), rounded);
}

// Writes the transposed of `from` (head_dim down, `stride` apart; 16 queries across), times factor, to `rows` rows.
static inline void store_transposed(const float* from, int stride, __m512 factor, int head_dim, int rows,
                                    const HeadRows<Bits>& to) {
  for (int d = 0; d < head_dim; d += lanes) {
    __m512i x[lanes];
    for (int i = 0; i < lanes; ++i)
      x[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(from + (d + i) * stride), factor));
    transpose(x);
    for (int i = 0; i < lanes && i < rows; ++i) store_row(_mm512_castsi512_ps(x[i]), head_dim - d, row_at(to, i) + d);
  }
}

// The first keys of 16 queries, and their own positions: what decides which keys they see.
struct Sight {
  __m512i first, last;
  __mmask16 sees(int key) const {
    const __m512i k = _mm512_set1_epi32(key);
    return _mm512_cmple_epi32_mask(k, last) & _mm512_cmpge_epi32_mask(k, first);
  }
};
static inline Sight sight_of(const HeadGroup& g, int query) {
  const __m512i ramp = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const int n = g.sequence - query;
  const auto there = static_cast<__mmask16>(n >= lanes ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
  return {g.first_key != nullptr ? _mm512_maskz_loadu_epi32(there, g.first_key + query) : _mm512_setzero_si512(),
          _mm512_add_epi32(ramp, _mm512_set1_epi32(query))};
}

// The smallest and the largest first key of queries [query, query + n), n at least 1.
struct FirstKeys {
  int least, most;
};
static inline FirstKeys first_keys(const HeadGroup& g, int query, int n) {
  if (g.first_key == nullptr) return {0, 0};
  FirstKeys keys{g.first_key[query], g.first_key[query]};
  for (int i = 1; i < n; ++i) {
    const int first = g.first_key[query + i];
    keys = {first < keys.least ? first : keys.least, first > keys.most ? first : keys.most};
  }
  return keys;
}

}  // namespace sestina::host::attention_bf16
