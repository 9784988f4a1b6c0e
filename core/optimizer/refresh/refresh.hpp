// Refreshes of preconditioners as jobs: a job is a pure function of a snapshot (the factor K and the published basis
// Q), so it may run on any space, now or later; its result is published by the optimizer that asked (port.hpp). There
// is one failure policy: a decomposition that fails in fp32 is tried again in fp64; if that fails too, or the factor is
// not finite, the last good result stays, the failure is counted and the factor is dumped; too many in a row end the
// run.
#pragma once
#include <string_view>

#include "core/optimizer/base/matrix_optimizer.hpp"

namespace sestina {

enum class RefreshMethod {
  eigen_basis,          // eigenvectors of K, eigenvalues falling
  power_qr,             // Q = qr(K Q): one step of subspace iteration from the published basis
  inverse_root_eigh,    // K^-exponent by eigen-decomposition
  inverse_root_qr,      // K^-exponent from a basis kept up to date by QR iterations, warm-started
  inverse_root_newton,  // K^-exponent by coupled Newton iteration: matrix products only
  leading_vectors,      // the first of a gradient's singular vectors (cold_bases): GaLore's projector
};

template <class Space>
struct RefreshJob {
  RefreshMethod method = RefreshMethod::power_qr;
  std::string_view name = {};              // for messages: "/optimizer/<HF name>/factor_left"
  Matrix<const float, Space> factor = {};  // (d, d) symmetric: K. leading_vectors: the gradient (m, n)
  Matrix<const float, Space> basis = {};   // (d, d) in: published basis (columns); (0, 0) where none is kept
  // (d, d) out, written at the very end: it may be the published one. (0, 0) where no basis is kept; inverse_root_eigh
  // gives inverse_root_qr its first one.
  Matrix<float, Space> new_basis = {};
  // power_qr, (d): columns are first sorted by falling q^T K q; entry j says which old column became column j, so that
  // the caller can permute its second moments. (0): no sorting.
  Vector<std::int32_t, Space> order = {};
  double shift = 0;  // power_qr: shift trace(K) I is added to K
  // These are for inverse_root_*:
  Matrix<float, Space> root = {};  // (d, d) out
  double exponent = 0.25;          // K to the power -exponent
  double scale = 1;                // K is multiplied by it first (bias correction)
  double eps = 1e-12;              // then eps I is added; eigenvalues below eps are raised: see perturb_before
  bool perturb_before = true;      // false: -min(0, smallest) + eps is added to the eigenvalues instead
  double tolerance = 0.01;  // inverse_root_qr: off-diagonal norm relative to the whole; met already: the basis stays
  int max_iterations = 1;   // inverse_root_qr, inverse_root_newton (0: until it converges, at most 100)
  // For leading_vectors root is the projector, (r, n) of the right side or (m, r) of the left one.
  bool right = false;
  BasisForm form = BasisForm::svd;
};

// A matrix's request: a job without basis and outputs, and where those lie in its state or elsewhere.
template <class Space>
struct RefreshRequest {
  RefreshJob<Space> job;
  StateArray<Space> basis = {}, root = {};
};

enum class Refreshed { done, not_needed, kept };  // kept: failed, the last good result stands

// Runs a job: reads the snapshot, writes the outputs of the job, when they are good, and nothing else. A factor that is
// exactly zero changes nothing (not_needed). Waits: on a device once, at the end, but for methods that decide on their
// way (inverse_root_newton, leading_vectors). Allocates only when it tries again in fp64.
template <class Space>
Refreshed compute_refresh(Stream<Space>&, const RefreshJob<Space>&);

// Queues a job on a device that judges by itself, without a wait: the host goes on as if the result were good, and what
// became of it is booked in the next update. A job that failed is not tried in fp64 there and then: the next one of its
// side is waited for, and is tried. False: this job has to be waited for now, and nothing was done.
template <class Space>
bool queue_refresh(Stream<Space>&, const RefreshJob<Space>&, const SideCounts&);
// Queues a job with its booking at once; queue_refresh() may put it off (refresh_batch.hpp).
template <class Space>
void queue_job(Stream<Space>&, const RefreshJob<Space>&, const typename QueuedRefreshes<Space>::Booking&);
// Called before the refreshes of update t: books what was queued in another one, by the policy below, and its checks of
// drift. Waits for what the space has not come to; it has come where the host has waited for the norm of the gradients.
// Returns whether update t begins here.
template <class Space>
bool book_refreshes(Stream<Space>&, std::int64_t t);

// Applies the policy to what a job gave. `failures`: in a row, a counter in the state of the factor's optimizer; null:
// none is kept, and no number of them ends the run. Allocates only when it dumps.
template <class Space>
void judge_refresh(Stream<Space>&, const RefreshJob<Space>&, Refreshed, std::int64_t* failures);

// Runs and judges a job, here and now.
template <class Space>
Refreshed refresh(Stream<Space>&, const RefreshJob<Space>&, std::int64_t& failures);

// Takes what compute_refresh() takes for a factor (d, d). sorted: power_qr with an order.
template <class Space>
void declare_refresh(Workspace<Space>&, RefreshMethod, std::size_t d, bool sorted = true);
// Takes what it takes for leading_vectors of a gradient (m, n).
template <class Space>
void declare_leading_vectors(Workspace<Space>&, BasisForm, std::size_t rows, std::size_t cols, bool right,
                             std::size_t rank);

// Makes first bases of an m x n matrix, which are unique: singular vectors of G (falling singular values) in fp64, the
// null space completed by Householder QR, the sign of each column such that its entry of largest size is positive. left
// (m, m) or right (n, n) may be (0, 0): not wanted; by the Gram matrix they may have fewer columns, the leading ones. G
// = 0 gives the identity; a G that is not finite leaves both untouched and returns false. Fences.
template <class Space>
bool cold_bases(Stream<Space>&, BasisForm, Matrix<const float, Space> gradient, Matrix<float, Space> left,
                Matrix<float, Space> right);
// Takes what cold_bases takes at most, whatever the rank of the gradient. left, right: columns of the bases, 0: not
// wanted.
template <class Space>
void declare_cold_bases(Workspace<Space>&, BasisForm, std::size_t rows, std::size_t cols, std::size_t left,
                        std::size_t right);

}  // namespace sestina
