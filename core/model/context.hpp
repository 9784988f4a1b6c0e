// The context that every layer needs in addition to its tensors: space, sizes, products, scratch, group and rotary
// tables; and how rows of the residual stream, of which each rank of the group holds some, are gathered and scattered.
// D is the hidden size, h the dimension of a head.
#pragma once
#include <algorithm>

#include "core/model/activations.hpp"
#include "core/model/seams.hpp"
#include "core/model/weights.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

template <class Exec>
struct Context {
  Exec exec;
  ModelPart part;
  int batch = 0, sequence = 0;  // B, T; N = B * T
  Gemm<Exec>& gemm;
  Workspace<Exec>& workspace;
  GroupOps<Exec>& group;                   // tensor-parallel group
  Matrix<const float, Exec> cosine, sine;  // (T, h/2), empty where positions are learned
  bool thin = false;                       // few rows: forward products on the host only read weights (thin_product)
  ExpertOps<Exec>* experts = nullptr;      // expert-parallel group; null: all experts are here
  double gradient_scale = 0;               // of the backward pass: factor of the losses of routers

  const ModelConfig& config() const { return part.config; }  // this rank's sizes
  int rows() const { return batch * sequence; }
  bool post_norm() const { return config().family == Family::olmo2; }
  bool layer_norm() const { return config().layer_norms(); }
  bool splits_query_norms() const { return part.tp > 1 && config().family == Family::olmo2; }
};

// Return columns [begin, end), or rows [begin, end), of a matrix.
template <class View>
View columns(const View& m, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(m, Kokkos::ALL, std::pair<std::int64_t, std::int64_t>(begin, end));
}
template <class View>
View row_range(const View& m, std::int64_t begin, std::int64_t end) {
  return Kokkos::subview(m, std::pair<std::int64_t, std::int64_t>(begin, end), Kokkos::ALL);
}

// Takes scratch of N rows, given back at the end of the caller's frame.
template <class T, class Exec>
Matrix<T, Exec> take_rows(Context<Exec>& context, std::int64_t width) {
  return context.workspace.template take<T>(static_cast<std::size_t>(context.rows()), static_cast<std::size_t>(width));
}

// Takes scratch of so many rows that are row_stride apart.
template <class T, class Exec>
Matrix<T, Exec> take_apart(Workspace<Exec>& workspace, std::int64_t rows, std::int64_t width) {
  const auto stride = static_cast<std::size_t>(row_stride(width));
  return columns(workspace.template take<T>(static_cast<std::size_t>(rows), stride), 0, width);
}

// Takes such scratch of N rows for a wide activation or its gradient.
template <class T, class Exec>
Matrix<T, Exec> take_wide_rows(Context<Exec>& context, std::int64_t width) {
  return take_apart<T>(context.workspace, context.rows(), width);
}

// Takes scratch of the rows of the residual stream that are here.
template <class T, class Exec>
Matrix<T, Exec> take_own_rows(Context<Exec>& context) {
  return context.workspace.template take<T>(static_cast<std::size_t>(context.part.own_rows(context.rows())),
                                            static_cast<std::size_t>(context.config().hidden_size));
}

// Returns all rows (N, D) of the stream-like matrix whose own rows are given: in scratch of the caller's frame, or
// `own` itself where all rows are here.
template <class T, class Exec>
Matrix<T, Exec> whole_rows(Context<Exec>& context, const Matrix<T, Exec>& own) {
  if (!context.part.splits_rows()) return own;
  const Matrix<T, Exec> whole = take_rows<T>(context, context.config().hidden_size);
  context.group.gather(context.exec, Matrix<const T, Exec>(own), whole);
  return whole;
}

// Sets `own` to the own rows of the sum over ranks of what write(partial) puts into partial (N, D), which is `own`
// itself where all rows are here. There is no padding.
template <class T, class Exec, class Write>
void sum_rows(Context<Exec>& context, const Matrix<T, Exec>& own, const Write& write) {
  if (!context.part.splits_rows()) {
    write(own);
    context.group.sum(context.exec, Vector<T, Exec>(own.data(), own.size()));
    return;
  }
  auto frame = context.workspace.frame();
  const Matrix<T, Exec> partial = take_rows<T>(context, context.config().hidden_size);
  write(partial);
  context.group.scatter_sum(context.exec, partial, own);
}

// Sets gradients that kernels add to to zero in the first micro-step. (Kokkos::deep_copy would allocate its labels.)
template <class View, class Exec>
static void start_sum(const Exec& exec, const View& gradient, bool accumulate) {
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
