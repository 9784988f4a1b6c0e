// A matrix optimizer: one object per matrix, which owns the order of its step, because the published methods differ in
// it (SOAP updates first and refreshes last; Shampoo and basis rotation refresh before use). What all of them share:
// state by name (matrix_state.hpp), scratch and products of the stream they run on, and refreshes as jobs
// (refresh.hpp).
//
// Notation: W m x n (rows = outputs), G its clipped gradient, t counts updates from 1.
#pragma once
#include <algorithm>
#include <memory>
#include <vector>

#include "core/deck/kinds.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/memory/matrix_state.hpp"
#include "core/optimizer/base/refresh_context.hpp"
#include "core/optimizer/base/routing.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/model/coded_rows.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// One matrix, or a range of its rows (a head), as an optimizer sees it. Rows are contiguous.
template <class Space>
struct OwnedMatrix {
  std::string name;                     // HF name, with ".head_00" after it for one head
  Matrix<const float, Space> gradient;  // (m, n) unclipped
  Matrix<float, Space> master;          // (m, n)
  Matrix<bf16, Space> weight;           // (m, n) rounded copy the model computes with; (0, 0) when it is the master
  CodedRows coded{};                    // in place of both: then the master has its shape, and no memory
  std::size_t rows() const { return master.extent(0); }
  std::size_t cols() const { return master.extent(1); }
};

template <class Space>
class RefreshPort;  // refresh/port.hpp

// Where matrices are updated one after another: an instance of the execution space, its products, and the workspace
// that they share, as large as the largest that one of them asks for.
template <class Space>
struct Stream {
  Space exec;
  Gemm<Space> gemm;
  Workspace<Space> workspace;
  Solver<Space> solver{exec};   // decompositions
  double* nonfinite = nullptr;  // raised by updates, see kernels/optimizer/finite_flag.hpp
  RefreshContext<Space> refresh{exec};
};

struct UpdateNumbers {
  std::int64_t t = 1;  // of the run
  double lr = 0, weight_decay = 0;
  double gradient_scale = 1;  // clipping; every optimizer sees G times it
};

template <class Space>
class MatrixOptimizer {
 public:
  virtual ~MatrixOptimizer() = default;
  // One update of `matrix`, which has the shape that the object was made for. Writes master and weight. Does not fence;
  // allocates nothing after its second call.
  virtual void step(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>& matrix) = 0;
  virtual MatrixState<Space>& state() = 0;
  virtual RefreshAges ages() const { return {}; }
  virtual RefreshPort<Space>* port() { return nullptr; }  // of its refreshes; null: it has none
};

// What an optimizer is made from. `index` numbers the matrices of the whole model, for staggering.
struct MatrixShape {
  std::string path;  // of its state: "/optimizer/<HF name>"
  std::size_t rows = 0, cols = 0;
  std::int64_t index = 0;
};

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer(const Space&, const MatrixOptions&, const MatrixShape&);

// Takes what an update of a matrix of this shape takes of its stream's workspace, and gives it back. skew: the matrix
// is a packed one (skew_blocks.hpp).
template <class Space>
void declare_update(Workspace<Space>&, const MatrixOptions&, std::size_t rows, std::size_t cols, bool skew = false);

// True when the refresh of a matrix falls due: t a multiple of `every`, or, staggered, t + index. With a count: where
// floor(t count / window) goes up. With periods: each matrix has its own.
inline bool refresh_due(std::int64_t t, std::int64_t every, std::int64_t index, const RefreshPolicy& policy) {
  const std::int64_t at = t + (policy.stagger ? index : 0);
  if (policy.periods.empty())
    return policy.window > 0 ? at * policy.count % policy.window < policy.count : at % every == 0;
  const std::int64_t period = policy.periods[static_cast<std::size_t>(index)];
  return (t + refresh_phase(index, period)) % period == 0;
}

}  // namespace sestina
