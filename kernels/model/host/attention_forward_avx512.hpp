// The forward pass of attention_bf16.hpp, for twins. Product multiplies panels (attention_bf16_amx.cpp).
#pragma once
#include "kernels/model/host/attention_jobs_avx512.hpp"

namespace sestina::host::attention_bf16 {

inline constexpr int tick_rows = 16;  // keys whose weights are made between two pieces of a product

// A strip of `group` queries on its way through the keys. A score s is weighed by 2^(c s - base), c = scale log2(e),
// where base is c times the largest score so far.
struct alignas(64) Strip {
  float largest[group], base[group], total[group];
};

// What one thread works in. Of scores and weights there are two: while the weights of a block of keys are made, those
// of the block before it are multiplied by values, and the scores of the block after it are made.
template <class Product>
struct ForwardScratch {
  Bits* q;           // pairs along the head, (group, width)
  float* sums;       // (width, group)
  float* scores[2];  // (key_block, group)
  Bits* weights[2];  // pairs along the keys, (group, key_block)
  Strip* strip;
  Jobs<Product>* jobs;
};
template <class Product>
static inline ForwardScratch<Product> take_forward(Room& room, int width) {
  const int rows = group * width, block = key_block * group;
  return {take<Bits>(room, rows),
          take<float>(room, rows),
          {take<float>(room, block), take<float>(room, block)},
          {take<Bits>(room, block), take<Bits>(room, block)},
          take<Strip>(room, 1),
          take<Jobs<Product>>(room, 1)};
}

// Hides the scores that 16 queries do not see.
static inline void hide_scores(const Sight& sight, int key, int n, float* scores) {
  const __m512 hidden = _mm512_set1_ps(-__builtin_inff());
  for (int i = 0; i < n; ++i, scores += group)
    _mm512_store_ps(scores, _mm512_mask_blend_ps(sight.sees(key + i), hidden, _mm512_load_ps(scores)));
}

// Turns scores of 16 queries against n keys into weights, and returns the factor of what was summed before. `tick` is
// called now and then.
template <class Tick>
static inline __m512 advance_lanes(float c, const float* scores, int n, Strip& strip, int lane, Bits* weights,
                                   const Tick& tick) {
  const __m512 minus_infinity = _mm512_set1_ps(-__builtin_inff()), by = _mm512_set1_ps(c);
  tick();
  __m512 top = _mm512_load_ps(strip.largest + lane), other = minus_infinity;
  for (int i = 0; i < n; i += 2) {
    top = _mm512_max_ps(_mm512_load_ps(scores + i * group), top);  // a NaN is passed over
    other = _mm512_max_ps(_mm512_load_ps(scores + (i + 1) * group), other);
  }
  top = _mm512_max_ps(top, other);
  const __mmask16 seen = _mm512_cmp_ps_mask(top, minus_infinity, _CMP_NEQ_UQ);
  const __m512 base = _mm512_maskz_mul_ps(seen, top, by);
  __m512 part = _mm512_setzero_ps(), part2 = part;
  for (int begin = 0; begin < n; begin += tick_rows) {
    tick();
    for (int i = begin; i < begin + tick_rows; i += 2) {
      const __m512 a = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + i * group), by, base)),
                   b = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(scores + (i + 1) * group), by, base));
      part = _mm512_add_ps(part, a);
      part2 = _mm512_add_ps(part2, b);
      _mm512_store_si512(weights + i * lanes, interleave_halves(round_rows(a, b)));
    }
  }
  const __m512 shrink = exp2_of(_mm512_sub_ps(_mm512_load_ps(strip.base + lane), base));
  _mm512_store_ps(strip.largest + lane, top);
  _mm512_store_ps(strip.base + lane, _mm512_mask_blend_ps(seen, minus_infinity, base));
  _mm512_store_ps(strip.total + lane,
                  _mm512_fmadd_ps(_mm512_load_ps(strip.total + lane), shrink, _mm512_add_ps(part, part2)));
  return shrink;
}

template <class Product>
struct ForwardPass {
  const GroupForward& f;
  const Bits *keys, *values;  // rows and columns
  ForwardScratch<Product> s;
  int width;
  float c;

  // Returns how many keys of a block the strip at `query` sees, in whole groups.
  static int keys_of(int query, int block) { return least(key_block, query + group - block * key_block); }

  // Puts the products of a block of keys: its scores, or its part of the sums of values.
  void put_scores(int query, int block) const {
    for (int i = 0; i < keys_of(query, block); i += group)
      s.jobs->add({width, keys + static_cast<std::ptrdiff_t>(block * key_block + i) * width, width, s.q, lanes * width,
                   s.scores[block % 2] + i * group, group, false});
  }
  void put_sums(int query, int block) const {
    const Bits* panel = values + static_cast<std::ptrdiff_t>(block) * key_block * width;
    for (int d = 0; d < width; d += group)
      s.jobs->add({keys_of(query, block), panel + d * key_block, key_block, s.weights[block % 2], lanes * key_block,
                   s.sums + d * group, group, true});
  }

  // Makes the weights of a block, and in between the products that wait.
  void pass(int query, int block) const {
    const int key = block * key_block, n = keys_of(query, block);
    Pace pace{s.jobs->pieces_to(s.jobs->put), group / lanes * (1 + n / tick_rows), 0, 0};
    const auto tick = [&] {
      for (int pieces = due(pace); pieces > 0; --pieces) s.jobs->run_piece();
    };
    const FirstKeys first = first_keys(f.g, query, least(group, f.g.sequence - query));
    __m512 shrink[group / lanes];
    for (int lane = 0; lane < group; lane += lanes) {
      float* scores = s.scores[block % 2] + lane;
      if (key + n > query + 1 || first.most > key) hide_scores(sight_of(f.g, query + lane), key, n, scores);
      shrink[lane / lanes] = advance_lanes(c, scores, n, *s.strip, lane, s.weights[block % 2] + lane * key_block, tick);
    }
    s.jobs->run_to(s.jobs->put);  // the sums before are among them
    for (int lane = 0; lane < group; lane += lanes) {
      if (_mm512_cmp_ps_mask(shrink[lane / lanes], _mm512_set1_ps(1), _CMP_NEQ_UQ) == 0) continue;
      for (int d = 0; d < width; ++d) {
        float* sum = s.sums + d * group + lane;
        _mm512_store_ps(sum, _mm512_mul_ps(_mm512_load_ps(sum), shrink[lane / lanes]));
      }
    }
  }

  void begin_strip(int head, int query) const {
    const HeadGroup& g = f.g;
    const int rows = least(group, g.sequence - query);
    pack_pairs_along({head_at(g.q, head, g.head_dim, query - g.start), rows, g.head_dim}, group, width, s.q);
    for (int i = 0; i < group; ++i) {
      s.strip->largest[i] = s.strip->base[i] = -__builtin_inff();
      s.strip->total[i] = 0;
    }
    for (int i = 0; i < group * width; ++i) s.sums[i] = 0;
  }

  void pass_keys(int query) const {
    const int begin = first_keys(f.g, query, least(group, f.g.sequence - query)).least / key_block,
              end = (query + group - 1) / key_block;
    put_scores(query, begin);
    s.jobs->run_to(s.jobs->put);
    for (int block = begin; block <= end; ++block) {
      if (block < end) put_scores(query, block + 1);
      pass(query, block);
      put_sums(query, block);
    }
    s.jobs->run_to(s.jobs->put);
  }

  // Writes the results of a strip and returns its largest score.
  float end_strip(int head, int query) const {
    const HeadGroup& g = f.g;
    float* lse = f.lse + static_cast<std::int64_t>(head) * (g.sequence - g.start) - g.start;
    __m512 largest = _mm512_set1_ps(-__builtin_inff());
    for (int lane = 0; lane < group; lane += lanes) {
      const int n = least(lanes, g.sequence - query - lane), row = query + lane - g.start;
      if (n <= 0) break;
      const auto there = static_cast<__mmask16>((1u << n) - 1u);
      const __m512 total = _mm512_load_ps(s.strip->total + lane);
      constexpr float ln2 = 0.69314718055994531f;
      const __m512 log = _mm512_add_ps(_mm512_load_ps(s.strip->base + lane), log2_of(total));
      _mm512_mask_storeu_ps(lse + query + lane, there, _mm512_mul_ps(log, _mm512_set1_ps(ln2)));
      largest = _mm512_mask_max_ps(largest, there, largest, _mm512_load_ps(s.strip->largest + lane));
      store_transposed(s.sums + lane, group, _mm512_div_ps(_mm512_set1_ps(1), total), g.head_dim, n,
                       head_at(f.out, head, g.head_dim, row));
    }
    return g.scale * _mm512_reduce_max_ps(largest);
  }

  float attend(int head, int begin, int end) const {
    float largest = -__builtin_inff();
    for (int query = begin; query < end; query += group) {
      begin_strip(head, query);
      pass_keys(query);
      const float found = end_strip(head, query);
      largest = largest < found ? found : largest;
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

template <class Product>
PassMemory forward_memory(int sequence, int head_dim) {
  Room room{nullptr, 0};
  take_forward<Product>(room, width_of(head_dim));
  return {2 * panel_size(sequence, head_dim) * sizeof(Bits), room.used};
}

template <class Product>
float attend(const GroupForward& f, const void* panels, int head, int begin, int end, void* scratch) {
  constexpr float log2_e = 1.44269504088896341f;
  [[maybe_unused]] const Product product{};
  const Bits* keys = static_cast<const Bits*>(panels);
  const int width = width_of(f.g.head_dim);
  Room room{static_cast<char*>(scratch), 0};
  const ForwardPass<Product> pass{f,
                                  keys,
                                  keys + panel_size(f.g.sequence, f.g.head_dim),
                                  take_forward<Product>(room, width),
                                  width,
                                  f.g.scale * log2_e};
  pass.s.jobs->clear();
  return pass.attend(head, begin, end);
}

}  // namespace sestina::host::attention_bf16
