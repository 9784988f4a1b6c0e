// Attention as its definition says, one row of scores at a time: the form the device runs, and what the blocked host
// form (attention_blocked.hpp) is tested against. Scores pass through in blocks of keys, so no (T, T) matrix is stored.
#pragma once
#include "kernels/blas/math.hpp"
#include "kernels/model/attention.hpp"

namespace sestina::attention_rows {

inline constexpr int key_block = 128;

// Rows of a matrix as kernels carry them. A View is 40 bytes, this is 16: Kokkos passes a functor of more than 512
// bytes through constant memory, and waits for the kernel before that used it.
template <class T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;
  Rows() = default;
  template <class View>
  explicit Rows(const View& x) : data(x.data()), stride(static_cast<std::int64_t>(x.stride(0))) {}
  KOKKOS_FUNCTION T* at(std::int64_t row, int col) const { return data + row * stride + col; }
};

// The data of all rows, as a kernel finds those of row r of the batch and of a head.
template <class T>
struct Inputs {
  AttentionShape shape;
  Rows<const T> q, k, v;
  const std::int32_t* first_key;  // null: every row sees its sequence from the start

  KOKKOS_FUNCTION int first(std::int64_t row) const { return first_key != nullptr ? first_key[row] : 0; }
  KOKKOS_FUNCTION const T* query(std::int64_t row, int head) const { return q.at(row, head * shape.head_dim); }
  KOKKOS_FUNCTION const T* key(std::int64_t row, int head) const { return k.at(row, head * shape.head_dim); }
  KOKKOS_FUNCTION const T* value(std::int64_t row, int head) const { return v.at(row, head * shape.head_dim); }
};

template <class Exec, class T>
Inputs<T> inputs_of(const AttentionShape& shape, Matrix<const T, Exec> q, Matrix<const T, Exec> k,
                    Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key) {
  return {shape, Rows<const T>(q), Rows<const T>(k), Rows<const T>(v),
          first_key.size() > 0 ? first_key.data() : nullptr};
}

template <class A, class T>
KOKKOS_INLINE_FUNCTION A dot(const T* a, const T* b, int n) {
  A sum = 0;
  for (int d = 0; d < n; ++d) sum += A(a[d]) * A(b[d]);
  return sum;
}

// The place of one league member: there is one for each (batch, head, query row).
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
static void forward(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> q, Matrix<const T, Exec> k,
                    Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> out,
                    Vector<Acc<T>, Exec> lse, Vector<Acc<T>, Exec> top = {}) {
  using A = Acc<T>;
  using Policy = Kokkos::TeamPolicy<Exec>;
  using Member = typename Policy::member_type;
  using Scratch = Kokkos::View<A*, typename Exec::scratch_memory_space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  const Inputs<T> in = inputs_of<Exec, T>(shape, q, k, v, first_key);
  const Rows<T> to(out);
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
          const A shrink = total == A(0) ? A(0) : exp_below_89(largest - top);
          team.team_barrier();
          A part;
          Kokkos::parallel_reduce(
              Kokkos::TeamVectorRange(team, n), [&](int j, A& s) { s += p(j) = exp_below_89(p(j) - top); }, part);
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
        T* result = to.at(place.row, place.head * h);
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) { result[d] = T(sum(d) / total); });
        Kokkos::single(Kokkos::PerTeam(team), [&] {
          lse(team.league_rank()) = largest + Kokkos::log(total);
          if (top.size() > 0) Kokkos::atomic_max(&top(place.head), largest);
        });
      });
}

// With p = exp(s - lse), dp = dout . v, delta = dout . out and ds = scale p (dp - delta): dq = ds k, dk = ds^T q, dv =
// p^T dout.
template <class T>
struct Gradients {
  Inputs<T> in;
  Rows<const T> dout;
  const Acc<T>*lse, *delta;  // (B*H*T)

  // Computes p and ds of one pair of query row `at` and key row `key`.
  KOKKOS_FUNCTION void pair(std::int64_t base, int head, int kv_head, std::int64_t index, int at, int key, Acc<T>& p,
                            Acc<T>& ds) const {
    using A = Acc<T>;
    const int h = in.shape.head_dim;
    const A scale = static_cast<A>(in.shape.scale);
    const T* grad = dout.at(base + at, head * h);
    p = exp_below_89(scale * dot<A>(in.query(base + at, head), in.key(base + key, kv_head), h) - lse[index]);
    ds = scale * p * (dot<A>(grad, in.value(base + key, kv_head), h) - delta[index]);
  }
};

template <class Exec, class T>
static void find_delta(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> dout,
                       Matrix<const T, Exec> out, Vector<Acc<T>, Exec> delta) {
  const int h = shape.head_dim, heads = shape.heads;
  const Rows<const T> grads(dout), outs(out);
  Kokkos::parallel_for(
      "attention_delta", Kokkos::RangePolicy<Exec>(exec, 0, delta.extent(0)), KOKKOS_LAMBDA(std::int64_t i) {
        const Place<Exec> place(shape, i, heads);
        delta(i) = dot<Acc<T>>(grads.at(place.row, place.head * h), outs.at(place.row, place.head * h), h);
      });
}

template <class Exec, class T>
static void find_dq(const Exec& exec, const Gradients<T>& g, Rows<T> dq) {
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
        T* result = dq.at(place.row, place.head * h);
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) { result[d] = T(sum(d)); });
      });
}

// Sums dk and dv with one league member per (batch, kv head, key row): over the heads of the group, then over the
// queries that see the key.
template <class Exec, class T>
static void find_dk_dv(const Exec& exec, const Gradients<T>& g, Rows<T> dk, Rows<T> dv) {
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
                t += share(i) * A(g.dout.at(row, head * h)[d]);
              }
              sum_k(d) = s;
              sum_v(d) = t;
            });
            team.team_barrier();
          }
        }
        T *to_k = dk.at(place.row, place.head * h), *to_v = dv.at(place.row, place.head * h);
        Kokkos::parallel_for(Kokkos::TeamVectorRange(team, h), [&](int d) {
          to_k[d] = T(sum_k(d));
          to_v[d] = T(sum_v(d));
        });
      });
}

template <class Exec, class T>
struct DeltaScratch {
  DeltaScratch(Workspace<Exec>& workspace, const AttentionShape& shape)
      : delta(workspace.template take<Acc<T>>(static_cast<std::size_t>(shape.batch) * shape.heads * shape.sequence)) {}
  Vector<Acc<T>, Exec> delta;  // (B*H*T)
};

// Takes a DeltaScratch from the workspace.
template <class Exec, class T>
static void backward(const Exec& exec, const AttentionShape& shape, Matrix<const T, Exec> dout, Matrix<const T, Exec> q,
                     Matrix<const T, Exec> k, Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key,
                     Matrix<const T, Exec> out, Vector<const Acc<T>, Exec> lse, Matrix<T, Exec> dq, Matrix<T, Exec> dk,
                     Matrix<T, Exec> dv, Workspace<Exec>& workspace) {
  auto frame = workspace.frame();
  const Vector<Acc<T>, Exec> delta = DeltaScratch<Exec, T>(workspace, shape).delta;
  if (delta.size() == 0) return;
  find_delta<Exec, T>(exec, shape, dout, out, delta);
  const Gradients<T> g{inputs_of<Exec, T>(shape, q, k, v, first_key), Rows<const T>(dout), lse.data(), delta.data()};
  find_dq(exec, g, Rows<T>(dq));
  find_dk_dv(exec, g, Rows<T>(dk), Rows<T>(dv));
}

}  // namespace sestina::attention_rows
