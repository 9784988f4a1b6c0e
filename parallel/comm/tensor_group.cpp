#include "parallel/comm/tensor_group.hpp"

#include "kernels/blas/sums.hpp"
#include "parallel/comm/group_staging.hpp"
#include "parallel/comm/stream_order.hpp"

namespace sestina {

template <class Exec>
void TensorGroup<Exec>::reserve(std::size_t bytes) {
  if (staging_.size() < bytes)
    staging_ = decltype(staging_)(Kokkos::view_alloc("sestina::group", Kokkos::WithoutInitializing), bytes);
}

template <class Exec>
template <class T>
Vector<T, Exec> TensorGroup<Exec>::staging(std::size_t n) {
  reserve(n * sizeof(T));
  return Vector<T, Exec>(reinterpret_cast<T*>(staging_.data()), n);
}

template <class Exec>
template <class T, class Cut>
void TensorGroup<Exec>::scatter(const Exec& exec, const char* name, const T* from, const Cut& cut,
                                Vector<T, Exec> received) {
  start_after(exec, group_, "group_scatter");
  const std::size_t mine = cut(rank() + 1) - cut(rank());
  std::size_t at = 0;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    group_.receive(peer, received.data() + at, mine * sizeof(T));
    group_.send(peer, from + cut(peer), (cut(peer + 1) - cut(peer)) * sizeof(T));
    at += mine;
  }
  group_.wait_in(queue_of(exec), name);
}

template <class Exec>
template <class T, class Cut>
void TensorGroup<Exec>::collect(const Exec& exec, const char* name, T* whole, const Cut& cut) {
  start_after(exec, group_, "group_collect");
  const std::size_t mine = cut(rank() + 1) - cut(rank());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    group_.receive(peer, whole + cut(peer), (cut(peer + 1) - cut(peer)) * sizeof(T));
    group_.send(peer, whole + cut(rank()), mine * sizeof(T));
  }
  group_.wait_in(queue_of(exec), name);
}

template <class Exec>
template <class T>
void TensorGroup<Exec>::reduce(const Exec& exec, Vector<T, Exec> x, bool sum) {
  if (size() == 1) return;
  ++count_.reductions;
  const std::size_t n = x.extent(0);
  const Vector<T, Exec> others = staging<T>(summed_from_others(n, size(), rank()));
  const auto apply = [&](const Vector<T, Exec>& own) {
    if (sum)
      tree_sum<Exec, T>(exec, rank(), size(), own, others, own);
    else
      tree_max<Exec, T>(exec, rank(), size(), own, others, own);
  };
  if (n <= direct_elements) {
    start_after(exec, group_, "group_reduce");
    std::size_t at = 0;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      group_.receive(peer, others.data() + at, n * sizeof(T));
      group_.send(peer, x.data(), n * sizeof(T));
      at += n;
    }
    group_.wait_in(queue_of(exec), "sum over the tensor-parallel group");
    return apply(x);
  }
  const auto cut = [&](int r) { return first_summed(n, size(), r); };
  const std::size_t mine = cut(rank() + 1) - cut(rank());
  scatter(exec, "parts of a sum over the tensor-parallel group", x.data(), cut, others);
  apply(Vector<T, Exec>(x.data() + cut(rank()), mine));
  collect(exec, "gather of a sum over the tensor-parallel group", x.data(), cut);
}

template <class Exec>
template <class T>
void TensorGroup<Exec>::rows(const Exec& exec, Matrix<const T, Exec> part, Matrix<T, Exec> whole) {
  ++count_.gathers;
  const auto n = static_cast<std::int64_t>(whole.extent(0));
  const std::size_t width = whole.extent(1);
  const auto cut = [&](int r) { return static_cast<std::size_t>(first_row_of(n, size(), r)) * width; };
  T* own = whole.data() + cut(rank());
  SESTINA_REQUIRE(part.size() == cut(rank() + 1) - cut(rank()), "{} x {} is not my part of {} x {}", part.extent(0),
                  part.extent(1), n, width);
  if (part.data() != own)
    convert<Exec, T, T>(exec, Vector<const T, Exec>(part.data(), part.size()), Vector<T, Exec>(own, part.size()));
  collect(exec, "gather over the tensor-parallel group", whole.data(), cut);
}

template <class Exec>
template <class T>
void TensorGroup<Exec>::sums(const Exec& exec, Matrix<T, Exec> whole, Matrix<T, Exec> part) {
  ++count_.scatter_sums;
  const auto n = static_cast<std::int64_t>(whole.extent(0));
  const std::size_t width = whole.extent(1);
  const auto cut = [&](int r) { return static_cast<std::size_t>(first_row_of(n, size(), r)) * width; };
  const std::size_t mine = cut(rank() + 1) - cut(rank());
  SESTINA_REQUIRE(part.size() == mine, "{} x {} is not my part of {} x {}", part.extent(0), part.extent(1), n, width);
  const Vector<T, Exec> others = staging<T>(static_cast<std::size_t>(size() - 1) * mine);
  scatter(exec, "sum of rows over the tensor-parallel group", whole.data(), cut, others);
  tree_sum<Exec, T>(exec, rank(), size(), Vector<const T, Exec>(whole.data() + cut(rank()), mine), others,
                    Vector<T, Exec>(part.data(), mine));
}

#define SESTINA_GROUP_OPS(T)                                                                            \
  template <class Exec>                                                                                 \
  void TensorGroup<Exec>::sum(const Exec& exec, Vector<T, Exec> x) {                                    \
    reduce(exec, x, true);                                                                              \
  }                                                                                                     \
  template <class Exec>                                                                                 \
  void TensorGroup<Exec>::gather(const Exec& exec, Matrix<const T, Exec> part, Matrix<T, Exec> whole) { \
    rows(exec, part, whole);                                                                            \
  }                                                                                                     \
  template <class Exec>                                                                                 \
  void TensorGroup<Exec>::scatter_sum(const Exec& exec, Matrix<T, Exec> whole, Matrix<T, Exec> part) {  \
    sums(exec, whole, part);                                                                            \
  }
SESTINA_GROUP_OPS(float)
SESTINA_GROUP_OPS(bf16)
SESTINA_GROUP_OPS(double)

template <class Exec>
void TensorGroup<Exec>::max(const Exec& exec, Vector<float, Exec> x) {
  reduce(exec, x, false);
}
template <class Exec>
void TensorGroup<Exec>::max(const Exec& exec, Vector<double, Exec> x) {
  reduce(exec, x, false);
}

#define SESTINA_TENSOR_GROUP(Exec) template class TensorGroup<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_TENSOR_GROUP)

}  // namespace sestina
