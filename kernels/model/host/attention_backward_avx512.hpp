// The backward pass of attention_bf16.hpp, for twins. Product multiplies panels (attention_bf16_amx.cpp).
//
// With p = exp(scale q.k - lse), dp = dout . v, delta = dout . out and ds = p (dp - delta): dv = p^T dout,
// dk = scale ds^T q, dq = scale ds k. Scores are computed again from lse, block by block.
#pragma once
#include "kernels/model/host/attention_jobs_avx512.hpp"

namespace sestina::host::attention_bf16 {

// A head's keys and values, and the sums of their gradients over the queries so far, (sequence, width) each.
struct BackwardPanels {
  Bits *keys, *values;  // rows
  Bits* key_columns;    // columns
  float *dk, *dv;
};
static inline BackwardPanels take_panels(Room& room, int sequence, int head_dim) {
  const int n = static_cast<int>(panel_size(sequence, head_dim));
  return {take<Bits>(room, n), take<Bits>(room, n), take<Bits>(room, n), take<float>(room, n), take<float>(room, n)};
}

// What belongs to a block of queries: c lse / scale, and delta.
struct alignas(64) QueryValues {
  float log[query_block], delta[query_block];
};

struct BackwardScratch {
  Bits *q, *dout;            // pairs along the head, (query_block, width)
  Bits *q_rows, *dout_rows;  // pairs along the queries, (width, query_block)
  float* dq;                 // (width, query_block)
  float *scores, *slopes;    // of one group of keys and queries, (group, group)
  Bits *p, *ds;              // rows, (key_block, query_block)
  Bits* ds_pairs;            // pairs along the keys, (query_block, key_block)
  QueryValues* values;
};
static inline BackwardScratch take_backward(Room& room, int width) {
  const int rows = query_block * width, square = group * group, block = key_block * query_block;
  return {take<Bits>(room, rows),  take<Bits>(room, rows),    take<Bits>(room, rows),    take<Bits>(room, rows),
          take<float>(room, rows), take<float>(room, square), take<float>(room, square), take<Bits>(room, block),
          take<Bits>(room, block), take<Bits>(room, block),   take<QueryValues>(room, 1)};
}

static inline PassMemory backward_memory(int sequence, int head_dim) {
  Room panels{nullptr, 0}, scratch{nullptr, 0};
  take_panels(panels, sequence, head_dim);
  take_backward(scratch, width_of(head_dim));
  return {panels.used, scratch.used};
}

// Computes p and ds of a group of keys and 16 queries from scores and dp; `seen` leaves out pairs that are hidden.
struct SlopeLanes {
  float c;
  __m512 log, delta;
  const float *scores, *slopes;  // (group, group), from the first of the 16 columns on
  Bits *p, *ds, *ds_pairs;       // from the group's first key and the first query on
};
static inline void find_pair(const SlopeLanes& s, int i, __mmask16 seen, __m512& p, __m512& ds) {
  p = exp2_of(_mm512_fmsub_ps(_mm512_load_ps(s.scores + i * group), _mm512_set1_ps(s.c), s.log));
  p = _mm512_maskz_mov_ps(seen, p);
  ds = _mm512_maskz_mul_ps(seen, p, _mm512_sub_ps(_mm512_load_ps(s.slopes + i * group), s.delta));
}
static inline void store_two_rows(__m512i rounded, Bits* to) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(rounded));
  _mm256_store_si256(reinterpret_cast<__m256i*>(to + query_block), _mm512_extracti64x4_epi64(rounded, 1));
}
template <class Seen>
static inline void find_slopes(const SlopeLanes& s, const Seen& seen) {
  for (int i = 0; i < group; i += 2) {
    __m512 p, ds, p_next, ds_next;
    find_pair(s, i, seen(i), p, ds);
    find_pair(s, i + 1, seen(i + 1), p_next, ds_next);
    store_two_rows(round_rows(p, p_next), s.p + i * query_block);
    const __m512i slopes = round_rows(ds, ds_next);
    store_two_rows(slopes, s.ds + i * query_block);
    _mm512_store_si512(s.ds_pairs + i * lanes, interleave_halves(slopes));
  }
}

// A block of queries of one head: rows [begin, begin + n) of the sequence.
struct Queries {
  int head, begin, n;
};

template <class Product>
struct BackwardPass {
  const GroupBackward& b;
  BackwardPanels m;
  BackwardScratch s;
  int width;
  float c;  // scale log2(e)

  void pack() const {
    const HeadGroup& g = b.g;
    const int n = padded(g.sequence);
    pack_rows({g.k, g.sequence, g.head_dim}, n, width, m.keys);
    pack_rows({g.v, g.sequence, g.head_dim}, n, width, m.values);
    pack_columns({g.k, g.sequence, g.head_dim}, n, width, m.key_columns);
    for (int i = 0; i < n * width; ++i) m.dk[i] = m.dv[i] = 0;
  }

  void pack_queries(const Queries& x) const {
    const HeadGroup& g = b.g;
    const PackedRows q{head_at(g.q, x.head, g.head_dim, x.begin), x.n, g.head_dim},
        dout{head_at(b.dout, x.head, g.head_dim, x.begin), x.n, g.head_dim};
    const int n = round_up(x.n, group);
    pack_pairs_along(q, n, width, s.q);
    pack_pairs_along(dout, n, width, s.dout);
    pack_pairs_across(q, n, width, query_block, s.q_rows);
    pack_pairs_across(dout, n, width, query_block, s.dout_rows);
    for (int i = 0; i < width * query_block; ++i) s.dq[i] = 0;
    constexpr float log2_e = 1.44269504088896341f;
    const float* lse = b.lse + static_cast<std::int64_t>(x.head) * g.sequence + x.begin;
    const PackedRows out{head_at(b.out, x.head, g.head_dim, x.begin), x.n, g.head_dim};
    for (int i = 0; i < query_block; ++i) {
      __m512 sum = _mm512_setzero_ps();
      if (i < x.n)
        for (int d = 0; d < width; d += group)
          sum = _mm512_dpbf16_ps(sum, (__m512bh)dout.load(i, d), (__m512bh)out.load(i, d));
      s.values->delta[i] = _mm512_reduce_add_ps(sum);
      s.values->log[i] = i < x.n ? log2_e * lse[i] : 0;
    }
  }

  // Computes p and ds of a group of keys, from row `at` of a block on, and a group of queries.
  void group_slopes(const Queries& x, int key, int at, int first) const {
    const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(key) * width;
    multiply<Product>(group, group, width, m.keys + from, width, s.q + first * width, lanes * width, s.scores, group,
                      false);
    multiply<Product>(group, group, width, m.values + from, width, s.dout + first * width, lanes * width, s.slopes,
                      group, false);
    const int query = x.begin + first, there = least(group, x.n - first);
    const bool whole = key + group <= query + 1 && there == group && first_keys(b.g, query, there).most <= key;
    for (int lane = 0; lane < group; lane += lanes) {
      const int column = first + lane;
      const SlopeLanes part{c,
                            _mm512_load_ps(s.values->log + column),
                            _mm512_load_ps(s.values->delta + column),
                            s.scores + lane,
                            s.slopes + lane,
                            s.p + at * query_block + column,
                            s.ds + at * query_block + column,
                            s.ds_pairs + column * key_block + at * lanes};
      if (whole) {
        find_slopes(part, [](int) { return __mmask16(0xffff); });
      } else {
        const Sight sight = sight_of(b.g, query + lane);
        find_slopes(part, [&](int i) { return sight.sees(key + i); });
      }
    }
  }

  // Takes a block of queries past a block of keys.
  void pass_block(const Queries& x, int block) const {
    const int begin = block * key_block, n = round_up(x.n, group),
              keys = least(key_block, round_up(x.begin + x.n - begin, group));
    for (int at = 0; at < keys; at += group) {
      const int key = begin + at, first = key <= x.begin ? 0 : key - x.begin;  // the first query that sees any of them
      for (int query = first; query < n; query += group) group_slopes(x, key, at, query);
      const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(key) * width;
      multiply<Product>(group, width, n - first, s.p + at * query_block + first, query_block,
                        s.dout_rows + first * lanes, lanes * query_block, m.dv + to, width, true);
      multiply<Product>(group, width, n - first, s.ds + at * query_block + first, query_block, s.q_rows + first * lanes,
                        lanes * query_block, m.dk + to, width, true);
    }
    for (int query = 0; query < n; query += group) {
      const int seen = least(keys, x.begin + query + group - begin);
      if (seen > 0)
        multiply<Product>(width, group, seen, m.key_columns + static_cast<std::ptrdiff_t>(begin) * width, key_block,
                          s.ds_pairs + query * key_block, lanes * key_block, s.dq + query, query_block, true);
    }
  }

  void pass(const Queries& x) const {
    const HeadGroup& g = b.g;
    pack_queries(x);
    for (int block = first_keys(g, x.begin, x.n).least / key_block; block * key_block < x.begin + x.n; ++block)
      pass_block(x, block);
    for (int query = 0; query < x.n; query += lanes)
      store_transposed(s.dq + query, query_block, _mm512_set1_ps(g.scale), g.head_dim, x.n - query,
                       head_at(b.dq, x.head, g.head_dim, x.begin + query));
  }

  void write(const float* from, float factor, const HeadRows<Bits>& to) const {
    for (int row = 0; row < b.g.sequence; ++row)
      for (int d = 0; d < width; d += lanes)
        store_row(_mm512_mul_ps(_mm512_load_ps(from + row * width + d), _mm512_set1_ps(factor)), b.g.head_dim - d,
                  row_at(to, row) + d);
  }
};

template <class Product>
void differentiate(const GroupBackward& b, void* panels, void* scratch) {
  constexpr float log2_e = 1.44269504088896341f;
  [[maybe_unused]] const Product product{};
  Room room{static_cast<char*>(panels), 0}, own{static_cast<char*>(scratch), 0};
  const HeadGroup& g = b.g;
  const int width = width_of(g.head_dim);
  const BackwardPass<Product> pass{b, take_panels(room, g.sequence, g.head_dim), take_backward(own, width), width,
                                   g.scale * log2_e};
  pass.pack();
  for (int head = 0; head < g.heads; ++head)
    for (int begin = 0; begin < g.sequence; begin += query_block)
      pass.pass({head, begin, least(query_block, g.sequence - begin)});
  pass.write(pass.m.dk, g.scale, b.dk);
  pass.write(pass.m.dv, 1, b.dv);
}

}  // namespace sestina::host::attention_bf16
