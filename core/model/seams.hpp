// The interfaces that point upward: parallel/ and io/ attach to the mathematics of one rank through them.
#pragma once
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "core/layout/rank_layout.hpp"
#include "kernels/base/error.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

// Called by the model around each block (TensorSpec::block): gather of weights, page-in of state and reduction of
// finished gradients are done here. The defaults do nothing.
struct BlockHooks {
  virtual ~BlockHooks() = default;
  virtual void before_forward(int /*block*/) {}
  virtual void after_forward(int /*block*/) {}  // a last time for the block after the stage's layers
  virtual void before_backward(int /*block*/) {}
  virtual void after_backward(int /*block*/) {}
  // Called in two-part backward passes when the gradients of the block's norms are there; those of its other weights
  // follow.
  virtual void after_backward_input(int /*block*/) {}
  // Whether the calls above do something: else a pass may leave them out (core/model/pass_graphs.hpp).
  virtual bool act() const { return true; }
};

// Operations over a tensor-parallel group; this base class is the group of one rank, on which all are the identity.
// Work of the space that comes before a call is complete for it, and results are there for work that comes after it.
// Sums are taken in the order of a fixed binary tree over the ranks: the same bits on every rank, every time.
template <class Exec>
struct GroupOps {
  virtual ~GroupOps() = default;
  virtual int size() const { return 1; }
  virtual int rank() const { return 0; }

  // Called before the host waits for a space that worked with the group: waits, up to a limit, for the other ranks.
  virtual void complete() {}

  // These sum, or take the largest, in place over all ranks.
  virtual void sum(const Exec&, Vector<float, Exec>) {}
  virtual void sum(const Exec&, Vector<bf16, Exec>) {}
  virtual void sum(const Exec&, Vector<double, Exec>) {}
  virtual void max(const Exec&, Vector<float, Exec>) {}
  virtual void max(const Exec&, Vector<double, Exec>) {}

  // Rows of a matrix (N, D) without padding are sharded by first_row_of(N, size(), rank). gather: whole (N, D) from
  // every rank's rows `part`. scatter_sum: `part` = the own rows of the sum over ranks of `whole`, which is used up.
  virtual void gather(const Exec&, Matrix<const float, Exec> /*part*/, Matrix<float, Exec> /*whole*/) { no_group(); }
  virtual void gather(const Exec&, Matrix<const bf16, Exec>, Matrix<bf16, Exec>) { no_group(); }
  virtual void gather(const Exec&, Matrix<const double, Exec>, Matrix<double, Exec>) { no_group(); }
  virtual void scatter_sum(const Exec&, Matrix<float, Exec> /*whole*/, Matrix<float, Exec> /*part*/) { no_group(); }
  virtual void scatter_sum(const Exec&, Matrix<bf16, Exec>, Matrix<bf16, Exec>) { no_group(); }
  virtual void scatter_sum(const Exec&, Matrix<double, Exec>, Matrix<double, Exec>) { no_group(); }

 private:
  static void no_group() { SESTINA_REQUIRE(false, "one rank holds all rows"); }
};

// The rows of one pass that a rank sends for its experts' ranks and receives from others. Plain data, kept from the
// forward pass to the backward pass.
struct ExpertRows {
  std::vector<std::int64_t> sent;      // by expert of the model
  std::vector<std::int64_t> received;  // by own expert, and for each by source rank, in this order
  std::int64_t here() const { return std::accumulate(received.begin(), received.end(), std::int64_t{0}); }
};

// Work of the shared expert, which needs no rows of other ranks: it is done while those are on their way. Empty: none.
// (A std::ref of a lambda keeps it from allocating.)
using SharedWork = std::function<void()>;

// Expert parallelism: rows of tokens travel to the ranks that hold their experts, and back. This base class is one rank
// that holds all experts, and is never called. Of E experts rank r of the group holds those from r E / size() on.
template <class Exec>
struct ExpertOps {
  virtual ~ExpertOps() = default;
  virtual int size() const { return 1; }
  virtual int rank() const { return 0; }

  // Fills `received` from what all ranks have in `sent`. It waits for all ranks.
  virtual void exchange_counts(ExpertRows&) { no_group(); }
  // send: this rank's rows, sorted by expert, become rows sorted by (own expert, source rank) of all ranks. send_back
  // is the reverse way. Rows have no padding; their numbers are the sums of the lists. Both only set rows off: until
  // finish() neither those that leave nor the places of those that come may be touched. Several may be on their way.
  virtual void send(const Exec&, const ExpertRows&, Matrix<const float, Exec>, Matrix<float, Exec>) { no_group(); }
  virtual void send(const Exec&, const ExpertRows&, Matrix<const bf16, Exec>, Matrix<bf16, Exec>) { no_group(); }
  virtual void send(const Exec&, const ExpertRows&, Matrix<const double, Exec>, Matrix<double, Exec>) { no_group(); }
  virtual void send_back(const Exec&, const ExpertRows&, Matrix<const float, Exec>, Matrix<float, Exec>) { no_group(); }
  virtual void send_back(const Exec&, const ExpertRows&, Matrix<const bf16, Exec>, Matrix<bf16, Exec>) { no_group(); }
  virtual void send_back(const Exec&, const ExpertRows&, Matrix<const double, Exec>, Matrix<double, Exec>) {
    no_group();
  }
  // Does the work, and then waits for all rows that are on their way.
  virtual void finish(const Exec&, const SharedWork&) { no_group(); }

 private:
  static void no_group() { SESTINA_REQUIRE(false, "one rank holds all experts"); }
};

}  // namespace sestina
