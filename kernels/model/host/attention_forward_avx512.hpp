// The forward pass of attention_bf16.hpp, for twins. Product multiplies panels (attention_bf16_amx.cpp).
#pragma once
#include "kernels/model/host/attention_vectors_avx512.hpp"

namespace sestina::host::attention_bf16 {

inline constexpr int strips = 4;  // strips of `group` queries that pass by a block of keys one after the other

// A strip on its way through the keys. A score s is weighed by 2^(c s - base), c = scale log2(e), where base is c times
// the largest score so far.
struct alignas(64) Strip {
  float largest[group], base[group], total[group];
};

// What one thread works in.
struct ForwardScratch {
  Bits* q;         // pairs along the head, (strips, group, width)
  float* sums;     // (strips, width, group)
  float* scores;   // (key_block, group)
  Bits* weights;   // pairs along the keys, (group, key_block)
  Strip* running;  // (strips)
};
static inline ForwardScratch take_forward(Room& room, int width) {
  const int rows = strips * group;
  return {take<Bits>(room, rows * width), take<float>(room, rows * width), take<float>(room, key_block * group),
          take<Bits>(room, key_block * group), take<Strip>(room, strips)};
}

// Hides the scores that 16 queries do not see.
static inline void hide_scores(const Sight& sight, int key, int n, float* scores) {
  const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
  for (int i = 0; i < n; ++i, scores += group)
    _mm512_store_ps(scores, _mm512_mask_blend_ps(sight.sees(key + i), hidden, _mm512_load_ps(scores)));
}

// Turns scores of 16 queries against n keys into weights, and brings their running values and sums to the new base.
static inline void advance_lanes(float c, const float* scores, int n, Strip& strip, int lane, Bits* weights,
                                 float* sums, int width) {
  const __m512 minus_infinity = _mm512_set1_ps(-__builtin_inff()), by = _mm512_set1_ps(c);
  __m512 top = _mm512_load_ps(strip.largest + lane), other = minus_infinity;
  for (int i = 0; i < n; i += 2) {
    top = _mm512_max_ps(_mm512_load_ps(scores + i * group), top);  // a NaN is passed over
    other = _mm512_max_ps(_mm512_load_ps(scores + (i + 1) * group), other);
  }
  top = _mm512_max_ps(top, other);
  const __mmask16 seen = _mm512_cmp_ps_mask(top, minus_infinity, _CMP_NEQ_UQ);
  const __m512 base = _mm512_maskz_mul_ps(seen, top, by);
  __m512 part = _mm512_setzero_ps(), part2 = part;
  for (int i = 0; i < n; i += 2) {
    const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + i * group), by, base)),
                 b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + (i + 1) * group), by, base));
    part = _mm512_add_ps(part, a);
    part2 = _mm512_add_ps(part2, b);
    _mm512_store_si512(weights + i * lanes, interleave_halves(round_rows(a, b)));
  }
  const __m512 shrink = exp2_of(_mm512_sub_ps(_mm512_load_ps(strip.base + lane), base));
  _mm512_store_ps(strip.largest + lane, top);
  _mm512_store_ps(strip.base + lane, _mm512_mask_blend_ps(seen, minus_infinity, base));
  _mm512_store_ps(strip.total + lane,
                  _mm512_fmadd_ps(_mm512_load_ps(strip.total + lane), shrink, _mm512_add_ps(part, part2)));
  if (_mm512_cmp_ps_mask(shrink, _mm512_set1_ps(1), _CMP_NEQ_UQ) == 0) return;
  for (int d = 0; d < width; ++d) {
    float* sum = sums + d * group + lane;
    _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), shrink));
  }
}

template <class Product>
struct ForwardPass {
  const GroupForward& f;
  const Bits *keys, *values;  // rows and columns
  ForwardScratch s;
  int width;
  float c;

  // Takes the strip at `query` past a block of keys.
  void pass_block(int strip, int query, int block) const {
    const int key = block * key_block, n = least(key_block, round_up(query + group - key, group));
    const Bits* q = s.q + strip * group * width;
    float* sums = s.sums + strip * group * width;
    Product::multiply(n, group, width, keys + static_cast<std::ptrdiff_t>(key) * width, width, q, lanes * width,
                      s.scores, group, false);
    const FirstKeys first = first_keys(f.g, query, least(group, f.g.sequence - query));
    for (int lane = 0; lane < group; lane += lanes) {
      if (key + n > query + 1 || first.most > key) hide_scores(sight_of(f.g, query + lane), key, n, s.scores + lane);
      advance_lanes(c, s.scores + lane, n, s.running[strip], lane, s.weights + lane * key_block, sums, width);
    }
    Product::multiply(width, group, n, values + static_cast<std::ptrdiff_t>(key) * width, key_block, s.weights,
                      lanes * key_block, sums, group, true);
  }

  void begin_strip(int strip) const {
    Strip& r = s.running[strip];
    for (int i = 0; i < group; ++i) {
      r.largest[i] = r.base[i] = -__builtin_inff();
      r.total[i] = 0;
    }
    float* sums = s.sums + strip * group * width;
    for (int i = 0; i < group * width; ++i) sums[i] = 0;
  }

  // Writes the results of a strip and returns its largest score.
  float end_strip(int head, int strip, int query) const {
    const HeadGroup& g = f.g;
    float* lse = f.lse + static_cast<std::int64_t>(head) * (g.sequence - g.start) - g.start;
    __m512 largest = _mm512_set1_ps(-__builtin_inff());
    for (int lane = 0; lane < group; lane += lanes) {
      const int n = least(lanes, g.sequence - query - lane), row = query + lane - g.start;
      if (n <= 0) break;
      const auto there = static_cast<__mmask16>((1u << n) - 1u);
      const __m512 total = _mm512_load_ps(s.running[strip].total + lane);
      constexpr float ln2 = 0.69314718055994531f;
      const __m512 log = _mm512_add_ps(_mm512_load_ps(s.running[strip].base + lane), log2_of(total));
      _mm512_mask_storeu_ps(lse + query + lane, there, _mm512_mul_ps(log, _mm512_set1_ps(ln2)));
      largest = _mm512_mask_max_ps(largest, there, largest, _mm512_load_ps(s.running[strip].largest + lane));
      store_transposed(s.sums + strip * group * width + lane, group, _mm512_div_ps(_mm512_set1_ps(1), total),
                       g.head_dim, n, head_at(f.out, head, g.head_dim, row));
    }
    return g.scale * _mm512_reduce_max_ps(largest);
  }

  float attend(int head, int begin, int end) const {
    const HeadGroup& g = f.g;
    float largest = -__builtin_inff();
    for (int query = begin; query < end; query += strips * group) {
      const int rows = least(strips * group, end - query), count = round_up(rows, group) / group;
      pack_pairs_along({head_at(g.q, head, g.head_dim, query - g.start), rows, g.head_dim}, count * group, width, s.q);
      for (int i = 0; i < count; ++i) begin_strip(i);
      for (int block = first_keys(g, query, rows).least / key_block; block * key_block < query + rows; ++block)
        for (int i = 0; i < count; ++i)
          if (query + (i + 1) * group > block * key_block) pass_block(i, query + i * group, block);
      for (int i = 0; i < count; ++i) {
        const float found = end_strip(head, i, query + i * group);
        largest = largest < found ? found : largest;
      }
    }
    return largest;
  }
};

static inline void pack_forward(const GroupForward& f, void* panels) {
  const HeadGroup& g = f.g;
  const int n = padded(g.sequence), width = width_of(g.head_dim);
  Bits *keys = static_cast<Bits*>(panels), *values = keys + panel_size(g.sequence, g.head_dim);
  pack_rows({g.k, g.sequence, g.head_dim}, n, width, keys);
  pack_columns({g.v, g.sequence, g.head_dim}, n, width, values);
}

static inline PassMemory forward_memory(int sequence, int head_dim) {
  Room room{nullptr, 0};
  take_forward(room, width_of(head_dim));
  return {2 * panel_size(sequence, head_dim) * sizeof(Bits), room.used};
}

template <class Product>
float attend(const GroupForward& f, const void* panels, int head, int begin, int end, void* scratch) {
  constexpr float log2_e = 1.44269504088896341f;
  [[maybe_unused]] const Product product{};
  const Bits* keys = static_cast<const Bits*>(panels);
  const int width = width_of(f.g.head_dim);
  Room room{static_cast<char*>(scratch), 0};
  const ForwardPass<Product> pass{
      f, keys, keys + panel_size(f.g.sequence, f.g.head_dim), take_forward(room, width), width, f.g.scale * log2_e};
  return pass.attend(head, begin, end);
}

}  // namespace sestina::host::attention_bf16
