// A matrix optimizer: one object per matrix, which owns the order of its step, because the published methods differ in
// it (SOAP updates first and refreshes last; Shampoo and basis rotation refresh before use). All of them share state by
// name (core/memory/matrix_state.hpp), scratch and products of the stream they run on, and refreshes as jobs
// (core/optimizer/refresh/refresh.hpp).
//
// Notation: W m x n (rows = outputs), G its clipped gradient, t counts updates from 1.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "core/deck/kinds.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/memory/matrix_state.hpp"
#include "core/optimizer/base/refresh_context.hpp"
#include "core/optimizer/base/routing.hpp"
#include "kernels/blas/gemm.hpp"
#include "kernels/blas/workspace.hpp"
#include "kernels/model/quantise.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// One matrix, a range of its rows (a head), or a block of it, as an optimizer sees it. Rows follow one another; those
// of a block that is cut from longer rows do not, and it is updated by step_cut_block alone.
template <class Space>
struct OwnedMatrix {
  std::string name;                     // of its part of the tensor (MatrixPart)
  Matrix<const float, Space> gradient;  // (m, n) unclipped
  Matrix<float, Space> master;          // (m, n)
  Matrix<bf16, Space> weight;           // (m, n) rounded copy the model computes with; (0, 0) when it is the master
  CodedRows coded{};                    // in the place of both: then the master has its shape, and no memory
  bool rounded_later = false;           // passes round the master to bf16: no copy is kept
  bool computes_bf16() const { return rounded_later || weight.size() != 0; }
  std::size_t rows() const { return master.extent(0); }
  std::size_t cols() const { return master.extent(1); }
  bool is_cut() const { return master.stride(0) > master.extent(1); }
};

template <class Space>
class RefreshPort;  // refresh/port.hpp

// A stream, on which matrices are updated one after another: an instance of the execution space, its products, and the
// workspace that they share, as large as the largest that one of them needs.
template <class Space>
struct Stream {
  Space exec;
  Gemm<Space> gemm;
  Workspace<Space> workspace;
  Solver<Space> solver{exec};   // decompositions
  double* nonfinite = nullptr;  // raised by updates, see kernels/optimizer/matrix_update.hpp
  RefreshContext<Space> refresh{exec};
};

struct UpdateNumbers {
  std::int64_t t = 1;  // number of the update in the run
  double lr = 0, weight_decay = 0;
  double gradient_scale = 1;            // clipping; every optimizer sees G times it
  std::optional<double> momentum = {};  // in the place of the kind's own (optimizer.momentum_schedule)
};

template <class Space>
class MatrixOptimizer {
 public:
  virtual ~MatrixOptimizer() = default;
  // Makes one update of `matrix`, which has the shape that the object was made for. Writes master and weight. Does not
  // fence; allocates nothing after its second call.
  virtual void step(Stream<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>& matrix) = 0;
  virtual MatrixState<Space>& state() = 0;
  // Returns whether its next step, of a kind with refreshes, sends the same kernels to a device as most of its steps:
  // it neither starts nor refreshes anything. What workers do is not asked of it.
  virtual bool repeats(const RefreshPolicy&) { return false; }
  virtual RefreshAges ages() const { return {}; }
  virtual RefreshPort<Space>* port() { return nullptr; }  // port of its refreshes; null: it has none
};

// The shape and place of the matrix that an optimizer is made for. `index` numbers the matrices of the whole model, for
// staggering.
struct MatrixShape {
  std::string path;  // path of its state: "/optimizer/<HF name>"
  std::size_t rows = 0, cols = 0;
  std::int64_t index = 0;
};

template <class Space>
std::unique_ptr<MatrixOptimizer<Space>> make_matrix_optimizer(const Space&, const MatrixOptions&, const MatrixShape&);

// Takes what an update of a matrix of this shape takes of its stream's workspace, and gives it back. copied: the matrix
// is packed, or cut from longer rows, and is copied for its update (MatrixPart::is_copied).
template <class Space>
void declare_update(Workspace<Space>&, const MatrixOptions&, std::size_t rows, std::size_t cols, bool copied = false);

// Memory of a stream's workspace for the copy, in addition to that of the step of a matrix (rows, cols).
template <class Space>
struct CopiedMatrix {
  CopiedMatrix(Workspace<Space>& workspace, std::size_t rows, std::size_t cols)
      : gradient(workspace.template take<float>(rows, cols)), master(workspace.template take<float>(rows, cols)) {}
  Matrix<float, Space> gradient, master;
};

// Makes one update of a block whose rows lie in longer ones: the step is made on a copy, with the bits that the block
// would have as a matrix by itself.
template <class Space>
void step_cut_block(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>& block,
                    const UpdateRules&);

// Returns true when the refresh of a matrix falls due: t, or t + index where staggered, is a multiple of `every`. With
// a count, floor(t count / window) goes up. With periods, each matrix has its own.
inline bool refresh_due(std::int64_t t, std::int64_t every, std::int64_t index, const RefreshPolicy& policy) {
  const std::int64_t at = t + (policy.stagger ? index : 0);
  if (policy.periods.empty())
    return policy.window > 0 ? at * policy.count % policy.window < policy.count : at % every == 0;
  const std::int64_t period = policy.periods[static_cast<std::size_t>(index)];
  return (t + refresh_phase(index, period)) % period == 0;
}

// Makes one update of a matrix. Where there are rules on the update (kernels/optimizer/update_rules.hpp) the step of
// the kind is made at learning rate 1 on a matrix of zeros, which becomes the negative of its update, and the weight
// moves by that; else the kind moves the weight.
template <class Space>
void step_matrix(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>&,
                 const UpdateRules&);

// Matrix optimizers on packed skew-symmetric matrices (TensorSpec::skew_block): Q = U - U^T (b, b), of which the strict
// upper triangle theta is trained.
//
// The gradient of theta_ij is dL/dQ_ij - dL/dQ_ji for a loss L, so that unpacked it is G = dL/dQ - (dL/dQ)^T: twice the
// gradient of L on the space of skew matrices (in the product of Frobenius, which counts every theta twice). The kinds
// that are allowed depend on the size of G only by their eps. The step of the kind is made on G and Q as on any matrix
// (b, b), with state (b, b), and of the matrix X that comes out the skew part (X - X^T) / 2 is packed again. It is the
// skew matrix nearest to X, and as <G, D> = <G, (D - D^T) / 2> for every direction D, it goes downhill exactly as far
// to first order. Only rounding is left out, or what no rotation could follow:
//   - Momentum is linear in G, and skew. The polynomial of Newton-Schulz is odd, X (a I + b X^T X + c (X^T X)^2) =
//     a X - b X^3 + c X^5, and odd powers of a skew matrix are skew: Muon.
//   - G G^T = G^T G = -G^2: both factors are one matrix, and K^-p G K^-p is skew: Shampoo, and KL-Shampoo, whose
//     factors remain equal by induction.
//   - Adam in bases of both sides: with one basis B for both, B^T G B is skew, its second moment symmetric, and so the
//     update skew: SOAP, KL-SOAP, basis rotation. -G^2 has its eigenvalues in pairs, though, and the two sides may have
//     different bases of the plane of a pair; what this adds to the update is not skew in part.
// Methods that scale rows alone or project one side (NorMuon, one-sided bases, GaLore, APOLLO) treat Q_ij and Q_ji as
// two numbers, and AdaMuon divides the rounding on the diagonal of a skew direction by its own size, which makes it as
// large as the rest and changes the norm that it scales by: they are refused (MatrixKind::keeps_skew).

// Makes one update of a packed matrix: gradient and master are (1, b (b - 1) / 2). Where the step is skew, theta moves
// by its upper triangle, rounded as any weight is: Q comes back from packing with the bits it went in with.
template <class Space>
void step_skew_block(Stream<Space>&, MatrixOptimizer<Space>&, const UpdateNumbers&, const OwnedMatrix<Space>& packed,
                     std::size_t b);

}  // namespace sestina
