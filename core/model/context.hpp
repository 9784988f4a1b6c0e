// What every layer needs beside its tensors: space, sizes, products, scratch, group and rotary tables.
#pragma once
#include <algorithm>

#include "core/model/activations.hpp"
#include "core/model/weights.hpp"
#include "core/seams.hpp"
#include "kernels/gemm.hpp"
#include "kernels/workspace.hpp"

namespace sestina {

template <class Exec>
struct Context {
  Exec exec;
  ModelConfig config;
  int batch = 0, sequence = 0;  // B, T; N = B * T
  Gemm<Exec>& gemm;
  Workspace<Exec>& workspace;
  GroupOps<Exec>& group;                   // tensor-parallel group
  Matrix<const float, Exec> cosine, sine;  // (T, h/2), empty where positions are learned

  int rows() const { return batch * sequence; }
  bool post_norm() const { return config.family == Family::olmo2; }
  bool layer_norm() const { return config.family == Family::gpt; }
};

// Columns [begin, end) and rows [begin, end) of a matrix.
template <class View>
View columns(const View& m, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(m, Kokkos::ALL, std::pair<std::int64_t, std::int64_t>(begin, end));
}
template <class View>
View row_range(const View& m, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(m, std::pair<std::int64_t, std::int64_t>(begin, end), Kokkos::ALL);
}

// Scratch of N rows, given back at the end of the caller's frame.
template <class T, class Exec>
Matrix<T, Exec> take_rows(Context<Exec>& context, std::int64_t width) {
  return context.workspace.template take<T>(static_cast<std::size_t>(context.rows()), static_cast<std::size_t>(width));
}

// Sum over the tensor-parallel group of a matrix without padding; the identity on one rank.
template <class T, class Exec>
void sum_over_group(Context<Exec>& context, const Matrix<T, Exec>& m) {
  context.group.sum(context.exec, Vector<T, Exec>(m.data(), m.size()));
}

// Gradients that kernels add to start from zero in the first micro-step. (Kokkos::deep_copy would allocate its labels.)
template <class View, class Exec>
void start_sum(const Exec& exec, const View& gradient, bool accumulate) {
  const auto n = static_cast<std::int64_t>(gradient.size());
  if (accumulate || n == 0) return;
  auto* begin = gradient.data();
  if constexpr (std::is_same_v<Exec, Host>) {
    if (n <= 16384) {  // not worth waking the threads
      std::fill_n(begin, n, 0);
      return;
    }
  }
  Kokkos::parallel_for(
      "start_sum", Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, n, Kokkos::ChunkSize(4096)),
      KOKKOS_LAMBDA(std::int64_t i) { begin[i] = 0; });
}

}  // namespace sestina
