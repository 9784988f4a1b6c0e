// Attention as its definition says, one row of scores at a time: the form the device runs, and what the blocked host
// form (attention_blocked.hpp) is tested against. Scores pass through in blocks of keys, so no (T, T) matrix is stored.
#pragma once
#include "kernels/attention.hpp"
#include "kernels/math.hpp"

namespace sestina::attention_plain {

inline constexpr int key_block = 128;

// Everything a row needs to find its data: row r of the batch, head, key/value head.
template <class Exec, class T>
struct Inputs {
  AttentionShape shape;
  Matrix<const T, Exec> q, k, v;
  Vector<const std::int32_t, Exec> first_key;

  KOKKOS_FUNCTION int first(std::int64_t row) const { return first_key.size() > 0 ? first_key(row) : 0; }
  KOKKOS_FUNCTION const T* query(std::int64_t row, int head) const {
    return q.data() + row * static_cast<std::int64_t>(q.stride(0)) + head * shape.head_dim;
  }
  KOKKOS_FUNCTION const T* key(std::int64_t row, int head) const {
    return k.data() + row * static_cast<std::int64_t>(k.stride(0)) + head * shape.head_dim;
  }
  KOKKOS_FUNCTION const T* value(std::int64_t row, int head) const {
    return v.data() + row * static_cast<std::int64_t>(v.stride(0)) + head * shape.head_dim;
  }
};

template <class A, class T>
KOKKOS_INLINE_FUNCTION A dot(const T* a, const T* b, int n) {
  A sum = 0;
  for (int d = 0; d < n; ++d) sum += A(a[d]) * A(b[d]);
  return sum;
}

// One league member per (batch, head, query row).
template <class Exec>
struct Place {
  int batch, head, kv_head, at;
  std::int64_t row, base;  // row of the query in (N, .), first row of its sequence
  KOKKOS_FUNCTION Place(const AttentionShape& s, std::int64_t index, int heads)
      : at(static_cast<int>(index % s.sequence)) {
    head = static_cast<int>(index / s.sequence % heads);
    batch = static_cast<int>(index / s.sequence / heads);
    kv_head = heads == s.heads ? head / (s.heads / s.kv_heads) : head;
    base = static_cast<std::int64_t>(batch) * s.sequence;
    row = base + at;
  }
};

template <class Exec, class T>
void forward(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> q, Matrix<const T, Exec> k,
             Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> out,
             Vector<Acc<T>, Exec> lse, Vector<Acc<T>, Exec> top = {}) {
  using A = Acc<T>;
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  using Scratch = Kokkos::View<A*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const Inputs<Exec, T> in{shape, q, k, v, first_key};
  const int rows = shape.batch * shape.heads * shape.sequence, h = shape.head_dim;
  const A scale = static_cast<A>(shape.scale);
  if (rows == 0) return;
  Policy policy(exec, rows, Kokkos::AUTO);
  policy.set_scratch_size(0, Kokkos::PerTeam(Scratch::shmem_size(key_block) + Scratch::shmem_size(h)));
  Kokkos::parallel_for(
      "attention", policy, KOKKOS_LAMBDA(const Member& team) {
        const Place<Exec> place(in.shape, team.league_rank(), in.shape.heads);
        Scratch p(team.team_scratch(0), key_block), sum(team.team_scratch(0), h);
        const T* query = in.query(place.row, place.head);
        A largest = -Kokkos::Experimental::infinity_v<A>, total = 0;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) { sum(d) = 0; });
        for (int begin = in.first(place.row); begin <= place.at; begin += key_block) {
          const int n = place.at + 1 - begin < key_block ? place.at + 1 - begin : key_block;
          A found;
          Kokkos::parallel_reduce(
              Kokkos::TeamVectorRange(team, n),
              [&](int j, A& top) {
                const A score = scale * dot<A>(query, in.key(place.base + begin + j, place.kv_head), h);
                p(j) = score;
                top = top < score ? score : top;
              },
              Kokkos::Max<A>(found));
          const A top = largest < found ? found : largest;
          const A shrink = total == A(0) ? A(0) : exp_fast(largest - top);
          team.team_barrier();
          A part;
          Kokkos::parallel_reduce(
              Kokkos::TeamVectorRange(team, n), [&](int j, A& s) { s += p(j) = exp_fast(p(j) - top); }, part);
          team.team_barrier();
          Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) {
            A s = sum(d) * shrink;
            for (int j = 0; j < n; ++j) s += p(j) * A(in.value(place.base + begin + j, place.kv_head)[d]);
            sum(d) = s;
          });
          team.team_barrier();
          total = total * shrink + part;
          largest = top;
        }
        T* result = out.data() + place.row * static_cast<std::int64_t>(out.stride(0)) + place.head * h;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) { result[d] = T(sum(d) / total); });
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          lse(team.league_rank()) = largest + Kokkos::log(total);
          if (top.size() > 0) Kokkos::atomic_max(&top(place.head), largest);
        });
      });
}

// With p = exp(s - lse), dp = dout . v, delta = dout . out and ds = scale p (dp - delta): dq = ds k, dk = ds^T q, dv =
// p^T dout.
template <class Exec, class T>
struct Gradients {
  Inputs<Exec, T> in;
  Matrix<const T, Exec> dout;
  Vector<const Acc<T>, Exec> lse, delta;  // (B*H*T)

  // p and ds of one pair of query row `at` and key row `key`.
  KOKKOS_FUNCTION void pair(std::int64_t base, int head, int kv_head, std::int64_t index, int at, int key, Acc<T>& p,
                            Acc<T>& ds) const {
    using A = Acc<T>;
    const int h = in.shape.head_dim;
    const A scale = static_cast<A>(in.shape.scale);
    const T* grad = dout.data() + (base + at) * static_cast<std::int64_t>(dout.stride(0)) + head * h;
    p = exp_fast(scale * dot<A>(in.query(base + at, head), in.key(base + key, kv_head), h) - lse(index));
    ds = scale * p * (dot<A>(grad, in.value(base + key, kv_head), h) - delta(index));
  }
};

template <class Exec, class T>
void find_delta(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> dout, Matrix<const T, Exec> out,
                Vector<Acc<T>, Exec> delta) {
  const int h = shape.head_dim, heads = shape.heads;
  Kokkos::parallel_for(
      "attention_delta", Kokkos::RangePolicy<Exec>(exec, 0, delta.extent(0)), KOKKOS_LAMBDA(std::int64_t i) {
        const Place<Exec> place(shape, i, heads);
        delta(i) = dot<Acc<T>>(dout.data() + place.row * static_cast<std::int64_t>(dout.stride(0)) + place.head * h,
                               out.data() + place.row * static_cast<std::int64_t>(out.stride(0)) + place.head * h, h);
      });
}

template <class Exec, class T>
void find_dq(const Exec& exec, const Gradients<Exec, T>& g, Matrix<T, Exec> dq) {
  using A = Acc<T>;
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  using Scratch = Kokkos::View<A*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const AttentionShape shape = g.in.shape;
  const int h = shape.head_dim;
  Policy policy(exec, shape.batch * shape.heads * shape.sequence, Kokkos::AUTO);
  policy.set_scratch_size(0, Kokkos::PerTeam(Scratch::shmem_size(key_block) + Scratch::shmem_size(h)));
  Kokkos::parallel_for(
      "attention_dq", policy, KOKKOS_LAMBDA(const Member& team) {
        const std::int64_t index = team.league_rank();
        const Place<Exec> place(shape, index, shape.heads);
        Scratch slope(team.team_scratch(0), key_block), sum(team.team_scratch(0), h);
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) { sum(d) = 0; });
        for (int begin = g.in.first(place.row); begin <= place.at; begin += key_block) {
          const int n = place.at + 1 - begin < key_block ? place.at + 1 - begin : key_block;
          Kokkos::parallel_for(Kokkos::TeamVectorRange(team, n), [&](int j) {
            A p, ds;
            g.pair(place.base, place.head, place.kv_head, index, place.at, begin + j, p, ds);
            slope(j) = ds;
          });
          team.team_barrier();
          Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) {
            A s = sum(d);
            for (int j = 0; j < n; ++j) s += slope(j) * A(g.in.key(place.base + begin + j, place.kv_head)[d]);
            sum(d) = s;
          });
          team.team_barrier();
        }
        T* result = dq.data() + place.row * static_cast<std::int64_t>(dq.stride(0)) + place.head * h;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) { result[d] = T(sum(d)); });
      });
}

// One league member per (batch, kv head, key row): sums over the heads of the group, then over the queries that see the
// key.
template <class Exec, class T>
void find_dk_dv(const Exec& exec, const Gradients<Exec, T>& g, Matrix<T, Exec> dk, Matrix<T, Exec> dv) {
  using A = Acc<T>;
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  using Scratch = Kokkos::View<A*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const AttentionShape shape = g.in.shape;
  const int h = shape.head_dim, group = shape.heads / shape.kv_heads;
  Policy policy(exec, shape.batch * shape.kv_heads * shape.sequence, Kokkos::AUTO);
  policy.set_scratch_size(0, Kokkos::PerTeam(2 * Scratch::shmem_size(key_block) + 2 * Scratch::shmem_size(h)));
  Kokkos::parallel_for(
      "attention_dkv", policy, KOKKOS_LAMBDA(const Member& team) {
        const Place<Exec> place(shape, team.league_rank(), shape.kv_heads);
        Scratch share(team.team_scratch(0), key_block), slope(team.team_scratch(0), key_block);
        Scratch sum_k(team.team_scratch(0), h), sum_v(team.team_scratch(0), h);
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) { sum_k(d) = sum_v(d) = 0; });
        for (int head = place.head * group; head < (place.head + 1) * group; ++head) {
          const std::int64_t first_index =
              (static_cast<std::int64_t>(place.batch) * shape.heads + head) * shape.sequence;
          for (int begin = place.at; begin < shape.sequence; begin += key_block) {
            const int n = shape.sequence - begin < key_block ? shape.sequence - begin : key_block;
            Kokkos::parallel_for(Kokkos::TeamVectorRange(team, n), [&](int i) {
              A p = 0, ds = 0;
              if (g.in.first(place.base + begin + i) <= place.at) {
                g.pair(place.base, head, place.head, first_index + begin + i, begin + i, place.at, p, ds);
              }
              share(i) = p;
              slope(i) = ds;
            });
            team.team_barrier();
            Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) {
              A s = sum_k(d), t = sum_v(d);
              for (int i = 0; i < n; ++i) {
                const std::int64_t row = place.base + begin + i;
                s += slope(i) * A(g.in.query(row, head)[d]);
                t += share(i) * A(g.dout.data()[row * static_cast<std::int64_t>(g.dout.stride(0)) + head * h + d]);
              }
              sum_k(d) = s;
              sum_v(d) = t;
            });
            team.team_barrier();
          }
        }
        T* to_k = dk.data() + place.row * static_cast<std::int64_t>(dk.stride(0)) + place.head * h;
        T* to_v = dv.data() + place.row * static_cast<std::int64_t>(dv.stride(0)) + place.head * h;
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) {
          to_k[d] = T(sum_k(d));
          to_v[d] = T(sum_v(d));
        });
      });
}

// Workspace: (B*H*T) in Acc<T>.
template <class Exec, class T>
void backward(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> dout, Matrix<const T, Exec> q,
              Matrix<const T, Exec> k, Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key,
              Matrix<const T, Exec> out, Vector<const Acc<T>, Exec> lse, Matrix<T, Exec> dq, Matrix<T, Exec> dk,
              Matrix<T, Exec> dv, Workspace<Exec>& workspace) {
  const std::size_t rows = static_cast<std::size_t>(shape.batch) * shape.heads * shape.sequence;
  if (rows == 0) return;
  auto frame = workspace.frame();
  auto delta = workspace.template take<Acc<T>>(rows);
  find_delta<Exec, T>(exec, shape, dout, out, delta);
  const Gradients<Exec, T> g{{shape, q, k, v, first_key}, dout, lse, delta};
  find_dq(exec, g, dq);
  find_dk_dv(exec, g, dk, dv);
}

}  // namespace sestina::attention_plain
