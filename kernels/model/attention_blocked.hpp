// Blocked attention on host threads. A worker owns one (sequence, key/value head) at a time: it copies the head's keys
// and values into panels of Acc<T>, then walks blocks of query rows against blocks of keys, leaving out those that
// causality or first_key hide. Every sum has one fixed order, so the bits do not depend on the number of workers.
#pragma once
#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/blas/math.hpp"
#include "kernels/blas/rows.hpp"
#include "kernels/model/attention.hpp"
#include "kernels/model/attention_product.hpp"

namespace sestina::attention_blocked {

inline constexpr int query_block = 64, key_block = 128;
inline constexpr int strip = 16;  // rows that share one bound of the triangle inside a block

template <class T>
using In = Matrix<const T, Host>;

template <class V>
auto* at(const V& view, std::int64_t row, int column) {
  return view.data() + row * static_cast<std::int64_t>(view.stride(0)) + column;
}

// Packs rows [0, n) of a head with h columns, times factor, into (rows, width); padding is zero.
template <class A, class T>
void pack_rows(const T* from, std::int64_t stride, int n, int rows, int h, int width, A factor, A* __restrict to) {
  for (int i = 0; i < n; ++i) {
    const T* row = from + i * stride;
    A* packed = to + i * width;
    for (int d = 0; d < h; ++d) packed[d] = factor * A(row[d]);
    for (int d = h; d < width; ++d) packed[d] = 0;
  }
  std::fill(to + n * width, to + rows * width, A(0));
}

// even_blocks returns the even blocks of width `step` of two rows, in turn; odd_blocks the odd ones. A compiler makes
// one shuffle of such a list; no builtin for shuffles is known to g++, clang and nvcc.
template <int step, class V, int... lane>
V even_blocks(V a, V b, std::integer_sequence<int, lane...>) {
  return V{((lane & step) == 0 ? a[lane] : b[lane & ~step])...};
}
template <int step, class V, int... lane>
V odd_blocks(V a, V b, std::integer_sequence<int, lane...>) {
  return V{((lane & step) == 0 ? a[lane | step] : b[lane])...};
}

// Exchanges the off-diagonal blocks of width `step` between pairs of rows, then those of half that width (Eklundh
// 1972).
template <int step, class A>
void exchange(typename VectorOf<A>::type* rows) {
  constexpr std::make_integer_sequence<int, lanes<A>> all{};
  for (int i = 0; i < lanes<A>; ++i) {
    if ((i & step) != 0) continue;
    const auto a = rows[i], b = rows[i + step];
    rows[i] = even_blocks<step>(a, b, all);
    rows[i + step] = odd_blocks<step>(a, b, all);
  }
  if constexpr (step > 1) exchange<step / 2, A>(rows);
}

// Transposes the lanes x lanes block at `from`, whose rows lie `stride` apart.
template <class A>
void transpose_tile(const A* from, int stride, A* __restrict to, int to_stride) {
  using V = typename VectorOf<A>::type;
  V rows[lanes<A>];
  for (int i = 0; i < lanes<A>; ++i) rows[i] = *reinterpret_cast<const V*>(from + i * stride);
  exchange<lanes<A> / 2, A>(rows);
  for (int i = 0; i < lanes<A>; ++i) *reinterpret_cast<V*>(to + i * to_stride) = rows[i];
}

// Transposes one packed block of keys (key_block, width) to (width, key_block): the right operand of queries times
// keys.
template <class A>
void transpose_block(const A* from, int width, A* to) {
  for (int d = 0; d < width; d += lanes<A>) {
    for (int j = 0; j < key_block; j += lanes<A>)
      transpose_tile(from + j * width + d, width, to + d * key_block + j, key_block);
  }
}

// The problem as both passes know it.
template <class T>
struct Problem {
  AttentionShape shape;
  In<T> q, k, v;
  Vector<const std::int32_t, Host> first_key;

  using A = Acc<T>;
  int width() const { return round_up<A>(shape.head_dim); }  // width of a padded row
  int blocks() const { return (shape.sequence + key_block - 1) / key_block; }
  std::size_t panel() const { return static_cast<std::size_t>(blocks()) * key_block * width(); }  // elements
  int first(std::int64_t row) const { return first_key.size() > 0 ? first_key(row) : 0; }

  // Packs a head's rows of k or v into `rows` (sequence, width), and block by block transposed into `columns`.
  void pack_columns(const In<T>& m, std::int64_t base, int kv_head, A* rows, A* columns) const {
    const int padded = blocks() * key_block, h = shape.head_dim;
    pack_rows(at(m, base, kv_head * h), m.stride(0), shape.sequence, padded, h, width(), A(1), rows);
    for (int key = 0; key < padded; key += key_block)
      transpose_block(rows + key * width(), width(), columns + key * width());
  }
};

template <class A, class T>
void unpack_rows(const A* from, int n, int h, int width, A factor, T* to, std::int64_t stride) {
  for (int i = 0; i < n; ++i) {
    for (int d = 0; d < h; ++d) to[i * stride + d] = T(factor * from[i * width + d]);
  }
}

// Returns the number of keys of a block that a strip of rows ending at row_end may see, rounded up to whole vectors.
template <class A>
int keys_seen(int row_end, int key_begin) {
  return std::clamp(round_up<A>(row_end - key_begin), 0, key_block);
}

// Hides keys from one row's scores against one block: everything outside [first, last] becomes `hidden`.
template <class A>
void hide(A* scores, int n, int first, int last, A hidden) {
  for (int j = 0; j < n; ++j) scores[j] = j < first || j > last ? hidden : scores[j];
}

// Hands out work one unit at a time; each worker has a slot of the workspace of its own.
template <class Body>
void for_units(const char* label, const Host& exec, int units, int workers, const Body& body) {
  std::atomic<int> next{0};
  Kokkos::parallel_for(label, Kokkos::RangePolicy<Host>(exec, 0, workers), [&](int worker) {
    for (int unit = next++; unit < units; unit = next++) body(worker, unit);
  });
  exec.fence("attention");  // the counter of units lies on the stack
}

inline int workers(int threads, const AttentionShape& shape) {
  return std::max(1, std::min(threads, shape.batch * shape.kv_heads));
}

// Returns the first block to visit for rows [row, row + n) of the batch: the one with their smallest first key.
template <class T>
int first_block(const Problem<T>& p, std::int64_t row, int n) {
  if (p.first_key.size() == 0) return 0;
  int first = p.shape.sequence;
  for (int i = 0; i < n; ++i) first = std::min(first, p.first(row + i));
  return first / key_block;
}

// Rows of queries on their way through the keys: sums of weights times values, and the running maximum and sum of
// weights of each row (online softmax).
template <class A>
struct RunningRows {
  A *q, *sum, *scores;
  A largest[query_block], total[query_block];
};

// Turns the scores of one row into weights and rescales what has been summed so far to the new maximum.
template <class A>
void advance_row(RunningRows<A>& r, int i, int n, int width) {
  A* scores = r.scores + i * key_block;
  A top = r.largest[i];
  const A found = max_over<A>(HostLane{}, n, [&](int j) { return scores[j]; });
  top = top < found ? found : top;
  const A base = top == -Kokkos::Experimental::infinity_v<A> ? A(0) : top;
  A part = 0;
  for (int j = 0; j < n; ++j) part += scores[j] = exp_below_89(scores[j] - base);
  if (top != r.largest[i]) {
    const A shrink = exp_below_89(r.largest[i] - base);
    for (int d = 0; d < width; ++d) r.sum[i * width + d] *= shrink;
    r.total[i] *= shrink;
  }
  r.total[i] += part;
  r.largest[i] = top;
}

template <class T>
struct Forward {
  using A = Acc<T>;
  Problem<T> p;
  Matrix<T, Host> out;
  Vector<A, Host> lse, largest;
  int start = 0;  // first position that q, out and lse have, a multiple of query_block; above 0 only for a batch of 1

  std::size_t slot() const {
    return 2 * p.panel() + static_cast<std::size_t>(query_block) * (2 * p.width() + key_block);
  }

  void operator()(A* memory, int unit) const {
    const int batch = unit / p.shape.kv_heads, kv_head = unit % p.shape.kv_heads,
              group = p.shape.heads / p.shape.kv_heads;
    const int h = p.shape.head_dim, width = p.width(), sequence = p.shape.sequence;
    const std::int64_t base = static_cast<std::int64_t>(batch) * sequence;
    A *keys = memory, *values = keys + p.panel();
    p.pack_columns(p.k, base, kv_head, values, keys);  // `values` only lends its memory here
    pack_rows(at(p.v, base, kv_head * h), p.v.stride(0), sequence, p.blocks() * key_block, h, width, A(1), values);
    RunningRows<A> r;
    r.q = values + p.panel(), r.sum = r.q + query_block * width, r.scores = r.sum + query_block * width;
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int begin = start; begin < sequence; begin += query_block) {
        const int n = std::min(query_block, sequence - begin);
        const std::int64_t row = base + begin - start;
        pack_rows(at(p.q, row, head * h), p.q.stride(0), n, n, h, width, A(p.shape.scale), r.q);
        rows(r, keys, values, base, begin, n);
        A* logs =
            lse.data() + (static_cast<std::int64_t>(batch) * p.shape.heads + head) * (sequence - start) + begin - start;
        for (int i = 0; i < n; ++i) {
          unpack_rows(r.sum + i * width, 1, h, width, A(1) / r.total[i], at(out, row + i, head * h), 0);
          logs[i] = r.largest[i] + Kokkos::log(r.total[i]);
        }
        if (largest.size() > 0) Kokkos::atomic_max(&largest(head), *std::max_element(r.largest, r.largest + n));
      }
    }
  }

 private:
  // Attends from rows [begin, begin + n) of a sequence to all keys that they see.
  void rows(RunningRows<A>& r, const A* keys, const A* values, std::int64_t base, int begin, int n) const {
    const int h = p.shape.head_dim, width = p.width();
    std::fill(r.sum, r.sum + n * width, A(0));
    std::fill(r.total, r.total + n, A(0));
    std::fill(r.largest, r.largest + n, -Kokkos::Experimental::infinity_v<A>);
    for (int block = first_block(p, base + begin, n); block * key_block < begin + n; ++block) {
      const int key_begin = block * key_block;
      for (int top = 0; top < n; top += strip) {
        const int end = std::min(top + strip, n), seen = keys_seen<A>(begin + end, key_begin);
        multiply<Left::row_major>(end - top, seen, h, r.q + top * width, width, keys + block * key_block * width,
                                  key_block, r.scores + top * key_block, key_block, false);
        for (int i = top; i < end; ++i) {
          const int first = p.first(base + begin + i) - key_begin, last = begin + i - key_begin;
          if (first > 0 || last < seen - 1) {
            hide(r.scores + i * key_block, seen, first, last, -Kokkos::Experimental::infinity_v<A>);
          }
          advance_row(r, i, seen, width);
        }
        multiply<Left::row_major>(end - top, width, seen, r.scores + top * key_block, key_block,
                                  values + block * key_block * width, width, r.sum + top * width, width, true);
      }
    }
  }
};

// With p = exp(s - lse), dp = dout . v, delta = dout . out and ds = p (dp - delta): dv = p^T dout, dk = ds^T (scale q),
// dq = scale ds k.
template <class T>
struct Backward {
  using A = Acc<T>;
  Problem<T> p;
  In<T> dout, out;
  Vector<const A, Host> lse;
  Matrix<T, Host> dq, dk, dv;

  std::size_t slot() const {
    return 5 * p.panel() + static_cast<std::size_t>(query_block) * (3 * p.width() + 2 * key_block);
  }

  void operator()(A* memory, int unit) const {
    const int batch = unit / p.shape.kv_heads, kv_head = unit % p.shape.kv_heads,
              group = p.shape.heads / p.shape.kv_heads;
    const int h = p.shape.head_dim, width = p.width(), sequence = p.shape.sequence;
    const std::int64_t base = static_cast<std::int64_t>(batch) * sequence;
    const Parts m = parts(memory);
    p.pack_columns(p.v, base, kv_head, m.key_rows, m.value_columns);  // key_rows only lends its memory here
    p.pack_columns(p.k, base, kv_head, m.key_rows, m.key_columns);
    std::fill(m.dk, m.dk + p.panel(), A(0));
    std::fill(m.dv, m.dv + p.panel(), A(0));
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int begin = 0; begin < sequence; begin += query_block) rows(m, batch, head, begin);
    }
    unpack_rows(m.dk, sequence, h, width, A(1), at(dk, base, kv_head * h), dk.stride(0));
    unpack_rows(m.dv, sequence, h, width, A(1), at(dv, base, kv_head * h), dv.stride(0));
  }

 private:
  struct Parts {
    A *key_columns, *value_columns, *key_rows, *dk, *dv;  // whole sequence
    A *q, *dout, *dq;                                     // (query_block, width)
    A *p, *ds;                                            // (query_block, key_block)
  };
  Parts parts(A* memory) const {
    auto take = [&](std::size_t n) { return std::exchange(memory, memory + n); };
    const std::size_t panel = p.panel(), rows = static_cast<std::size_t>(query_block) * p.width();
    Parts m;
    m.key_columns = take(panel), m.value_columns = take(panel), m.key_rows = take(panel), m.dk = take(panel),
    m.dv = take(panel);
    m.q = take(rows), m.dout = take(rows), m.dq = take(rows);
    m.p = take(query_block * key_block), m.ds = take(query_block * key_block);
    return m;
  }

  // Takes one block of queries of one head through all keys that it sees.
  void rows(const Parts& m, int batch, int head, int begin) const {
    const int h = p.shape.head_dim, width = p.width(), n = std::min(query_block, p.shape.sequence - begin);
    const std::int64_t row = static_cast<std::int64_t>(batch) * p.shape.sequence + begin;
    const A* logs = lse.data() + (static_cast<std::int64_t>(batch) * p.shape.heads + head) * p.shape.sequence + begin;
    A delta[query_block];
    pack_rows(at(p.q, row, head * h), p.q.stride(0), n, n, h, width, A(p.shape.scale), m.q);
    pack_rows(at(dout, row, head * h), dout.stride(0), n, n, h, width, A(1), m.dout);
    for (int i = 0; i < n; ++i) {
      const T* result = at(out, row + i, head * h);
      A sum = 0;
      for (int d = 0; d < h; ++d) sum += m.dout[i * width + d] * A(result[d]);
      delta[i] = sum;
    }
    std::fill(m.dq, m.dq + n * width, A(0));
    for (int block = first_block(p, row, n); block * key_block < begin + n; ++block) {
      for (int top = 0; top < n; top += strip) {
        slopes(m, row, begin, block, top, std::min(top + strip, n), logs, delta);
      }
      add_key_sums(m, begin, n, block);
    }
    unpack_rows(m.dq, n, h, width, A(p.shape.scale), at(dq, row, head * h), dq.stride(0));
  }

  // Computes p and ds of rows [top, end) against one block of keys, and their part of dq.
  void slopes(const Parts& m, std::int64_t row, int begin, int block, int top, int end, const A* logs,
              const A* delta) const {
    const int h = p.shape.head_dim, width = p.width(), key_begin = block * key_block;
    const int seen = keys_seen<A>(begin + end, key_begin);
    const std::ptrdiff_t panel = static_cast<std::ptrdiff_t>(key_begin) * width;
    multiply<Left::row_major>(end - top, seen, h, m.q + top * width, width, m.key_columns + panel, key_block,
                              m.p + top * key_block, key_block, false);
    multiply<Left::row_major>(end - top, seen, h, m.dout + top * width, width, m.value_columns + panel, key_block,
                              m.ds + top * key_block, key_block, false);
    for (int i = top; i < end; ++i) {
      A *weight = m.p + i * key_block, *slope = m.ds + i * key_block;
      finish_slopes(weight, slope, seen, logs[i], delta[i]);
      const int first = p.first(row + i) - key_begin, last = begin + i - key_begin;
      if (first > 0 || last < seen - 1) {
        hide(weight, seen, first, last, A(0));
        hide(slope, seen, first, last, A(0));
      }
    }
    multiply<Left::row_major>(end - top, width, seen, m.ds + top * key_block, key_block, m.key_rows + panel, width,
                              m.dq + top * width, width, true);
  }

  static void finish_slopes(A* __restrict weight, A* __restrict slope, int n, A log, A delta) {
    for (int j = 0; j < n; ++j) {
      weight[j] = exp_below_89(weight[j] - log);
      slope[j] = weight[j] * (slope[j] - delta);
    }
  }

  // Adds to dk and dv of one block of keys the sums over the n rows of the query block that see them.
  void add_key_sums(const Parts& m, int begin, int n, int block) const {
    const int width = p.width(), key_begin = block * key_block, seen = std::min(begin + n - key_begin, key_block);
    for (int key = 0; key < seen; key += strip) {
      const int keys = std::min(strip, key_block - key), top = std::clamp(key_begin + key - begin, 0, n);
      const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(key_begin + key) * width;
      multiply<Left::column_major>(keys, width, n - top, m.p + top * key_block + key, key_block, m.dout + top * width,
                                   width, m.dv + to, width, true);
      multiply<Left::column_major>(keys, width, n - top, m.ds + top * key_block + key, key_block, m.q + top * width,
                                   width, m.dk + to, width, true);
    }
  }
};

// Memory of the workers that run a pass, with a slot for each.
template <class T>
struct WorkerSlots {
  template <class Pass>
  WorkerSlots(Workspace<Host>& workspace, const Pass& pass, int threads)
      : count(workers(threads, pass.p.shape)),
        length(Workspace<Host>::bytes<Acc<T>>(pass.slot()) / sizeof(Acc<T>)),
        memory(workspace.take<Acc<T>>(length * static_cast<std::size_t>(count)).data()) {}
  int count;
  std::size_t length;
  Acc<T>* memory;
};

// Runs a pass over all its units, in the workspace.
template <class T, class Pass>
void run(const char* label, const Host& exec, const Pass& pass, Workspace<Host>& workspace) {
  const AttentionShape& shape = pass.p.shape;
  const int units = shape.batch * shape.kv_heads;
  if (units == 0 || shape.sequence == 0) return;
  auto frame = workspace.frame();
  const WorkerSlots<T> slots(workspace, pass, threads_of(exec));
  for_units(label, exec, units, slots.count,
            [&](int worker, int unit) { pass(slots.memory + worker * slots.length, unit); });
}

}  // namespace sestina::attention_blocked
