#include "kernels/model/attention.hpp"

#include "kernels/blas/math.hpp"
#include "kernels/blas/rows.hpp"
#include "kernels/model/host/attention_native.hpp"

namespace sestina {

static_assert(attention_row_block == attention_blocked::query_block);

namespace {

// A row of q, and the rows of a cache that it sees, for one pair of heads.
template <class T>
struct Seen {
  const T *query, *keys, *values;  // rows `stride` apart
  std::int64_t stride;
  int count, head_dim;
};

template <class A, class T>
KOKKOS_FORCEINLINE_FUNCTION void score(const HostLane& lane, const Seen<T>& s, A scale, A* scores) {
  for (int j = 0; j < s.count; ++j) {
    const T* key = s.keys + j * s.stride;
    scores[j] = scale * sum_over<A>(lane, s.head_dim, [&](int d) { return A(s.query[d]) * A(key[d]); });
  }
}
template <class A, class T, class Member>
KOKKOS_FORCEINLINE_FUNCTION void score(const Member& lane, const Seen<T>& s, A scale, A* scores) {
  each(lane, s.count, [&](int j) {
    const T* key = s.keys + j * s.stride;
    A sum = 0;
    for (int d = 0; d < s.head_dim; ++d) sum += A(s.query[d]) * A(key[d]);
    scores[j] = scale * sum;
  });
}

template <class A, class T>
KOKKOS_FORCEINLINE_FUNCTION void add_values(const HostLane& lane, const Seen<T>& s, const A* weights, A* sum) {
  each(lane, s.head_dim, [&](int d) { sum[d] = 0; });
  for (int j = 0; j < s.count; ++j) {
    const T* value = s.values + j * s.stride;
    const A weight = weights[j];
    each(lane, s.head_dim, [&](int d) { sum[d] += weight * A(value[d]); });
  }
}
template <class A, class T, class Member>
KOKKOS_FORCEINLINE_FUNCTION void add_values(const Member& lane, const Seen<T>& s, const A* weights, A* sum) {
  each(lane, s.head_dim, [&](int d) {
    A total = 0;
    for (int j = 0; j < s.count; ++j) total += weights[j] * A(s.values[j * s.stride + d]);
    sum[d] = total;
  });
}

template <class Exec>
void count_up(const Exec& exec, std::int32_t first, Vector<std::int32_t, Exec> place) {
  Kokkos::parallel_for(
      "count_up", Kokkos::RangePolicy<Exec>(exec, 0, place.size()),
      KOKKOS_LAMBDA(std::size_t i) { place(i) = first + static_cast<std::int32_t>(i); });
}

}  // namespace

template <class Exec, class T>
void store_places(const Exec& exec, Vector<const std::int32_t, Exec> place, Matrix<const T, Exec> k,
                  Matrix<const T, Exec> v, Matrix<T, Exec> k_cache, Matrix<T, Exec> v_cache) {
  const int width = static_cast<int>(k.extent(1));
  for_rows(
      "store_places", exec, static_cast<std::int64_t>(k.extent(0)),
      KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T *key = row_of(k, row), *value = row_of(v, row);
        T *to_key = row_of(k_cache, place(row)), *to_value = row_of(v_cache, place(row));
        each(lane, width, [&](int d) {
          to_key[d] = key[d];
          to_value[d] = value[d];
        });
      });
}

template <class Exec, class T>
void attention_step(const Exec& exec, const AttentionShape& shape, Vector<const std::int32_t, Exec> place,
                    Matrix<const T, Exec> q, Matrix<const T, Exec> k_cache, Matrix<const T, Exec> v_cache,
                    Matrix<T, Exec> out, Workspace<Exec>& workspace) {
  using A = Acc<T>;
  auto frame = workspace.frame();
  const int heads = shape.heads, group = shape.heads / shape.kv_heads, h = shape.head_dim, capacity = shape.sequence;
  const auto units = static_cast<std::int64_t>(shape.batch) * heads;
  const std::int64_t room = capacity + h;
  A* const scratch = AttentionStepScratch<Exec, T>(workspace, shape).rows.data();
  const A scale = static_cast<A>(shape.scale);
  for_rows(
      "attention_step", exec, units, KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t unit) {
        const std::int64_t row = unit / heads, column = unit % heads / group * h;
        const std::int64_t at = place(row), first = at / capacity * capacity;
        const Seen<T> seen{row_of(q, row) + unit % heads * h, row_of(k_cache, first) + column,
                           row_of(v_cache, first) + column,   static_cast<std::int64_t>(k_cache.stride(0)),
                           static_cast<int>(at - first) + 1,  h};
        A *weights = scratch + unit * room, *sum = weights + capacity;
        score(lane, seen, scale, weights);
        sync(lane);
        const A largest = max_over<A>(lane, seen.count, [&](int j) { return weights[j]; });
        each(lane, seen.count, [&](int j) { weights[j] = exp_below_89(weights[j] - largest); });
        sync(lane);
        const A total = sum_over<A>(lane, seen.count, [&](int j) { return weights[j]; });
        add_values(lane, seen, weights, sum);
        sync(lane);
        T* to = row_of(out, row) + unit % heads * h;
        each(lane, h, [&](int d) { to[d] = T(sum[d] / total); });
      });
}

namespace {

// Memory in addition to that of the kernel that is called: lse on the host, the place of each row on a device.
template <class Exec, class T>
struct ContinuedScratch {
  using Element = std::conditional_t<std::is_same_v<Exec, Host>, Acc<T>, std::int32_t>;
  ContinuedScratch(Workspace<Exec>& workspace, const AttentionShape& shape, std::size_t rows)
      : values(workspace.template take<Element>(
            std::is_same_v<Exec, Host> ? rows * static_cast<std::size_t>(shape.heads) : rows)) {}
  Vector<Element, Exec> values;
};

// On a device, which continues a sequence row by row.
[[maybe_unused]] AttentionShape step_shape(AttentionShape shape, std::size_t rows) {
  shape.batch = static_cast<int>(rows);
  return shape;
}

}  // namespace

template <class Exec, class T>
void declare_attention_continued(Workspace<Exec>& workspace, const Exec& exec, const AttentionShape& shape, int rows) {
  const auto frame = workspace.frame();
  const ContinuedScratch<Exec, T> scratch(workspace, shape, static_cast<std::size_t>(rows));
  if constexpr (std::is_same_v<Exec, Host>)
    attention_native::declare_forward<T>(workspace, threads_of(exec), shape);
  else
    declare<AttentionStepScratch<Exec, T>>(workspace, step_shape(shape, static_cast<std::size_t>(rows)));
}

template <class Exec, class T>
void attention_continued(const Exec& exec, const AttentionShape& shape, int first, Matrix<const T, Exec> q,
                         Matrix<const T, Exec> k, Matrix<const T, Exec> v, Matrix<T, Exec> out,
                         Workspace<Exec>& workspace) {
  SESTINA_REQUIRE(shape.batch == 1 && first % attention_row_block == 0 && first <= shape.sequence,
                  "{} sequences of {}, continued at {}", shape.batch, shape.sequence, first);
  const auto rows = static_cast<std::size_t>(shape.sequence - first);
  auto frame = workspace.frame();
  const ContinuedScratch<Exec, T> scratch(workspace, shape, rows);
  if constexpr (std::is_same_v<Exec, Host>) {
    const attention_blocked::Forward<T> pass{{shape, q, k, v, {}}, out, scratch.values, {}, first};
    attention_native::run_forward<T>(exec, pass, workspace);
  } else {
    count_up(exec, first, scratch.values);
    attention_step<Exec, T>(exec, step_shape(shape, rows), scratch.values, q, k, v, out, workspace);
  }
}

#define SESTINA_ATTENTION_CACHED(Exec, T)                                                                     \
  template void store_places<Exec, T>(const Exec&, Vector<const std::int32_t, Exec>, Matrix<const T, Exec>,   \
                                      Matrix<const T, Exec>, Matrix<T, Exec>, Matrix<T, Exec>);               \
  template void attention_step<Exec, T>(const Exec&, const AttentionShape&, Vector<const std::int32_t, Exec>, \
                                        Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<const T, Exec>,  \
                                        Matrix<T, Exec>, Workspace<Exec>&);                                   \
  template void attention_continued<Exec, T>(const Exec&, const AttentionShape&, int, Matrix<const T, Exec>,  \
                                             Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<T, Exec>,   \
                                             Workspace<Exec>&);                                               \
  template void declare_attention_continued<Exec, T>(Workspace<Exec>&, const Exec&, const AttentionShape&, int);
SESTINA_INSTANTIATE(SESTINA_ATTENTION_CACHED)

}  // namespace sestina
