// Muon, NorMuon and AdaMuon of matrices of which each rank of a group keeps a shard, with its master weights and state:
// Newton-Schulz runs on all shards at once (kernels/optimizer/newton_schulz.hpp), and second moments and norms of the
// direction are those of the whole matrix (MovedMatrix in kernels/optimizer/matrix_update.hpp). Under tensor
// parallelism the shards are those that ranks compute with, and no matrix moves (parallel.tp_update = "distributed");
// else the plan deals them out (parallel.partition = "groups"). The scale of the update is that of the whole matrix, so
// but for rounding it is the update on one rank (muon.cpp), and the state is that of the whole matrix, of which each
// rank holds a slab. Means of NorMuon whose rows or columns are cut lie whole on every rank.
#pragma once
#include <vector>

#include "core/model/seams.hpp"
#include "core/optimizer/base/owned_tensor.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/update_record.hpp"
#include "core/optimizer/methods/muon.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {

// A shard, and the ranks that have the others.
template <class Exec, class T>
struct GroupedShard {
  OwnedTensor<Exec, T> tensor;
  GroupOps<Exec>* group = nullptr;
  bool shares_squares = false;  // each rank of the group forms some rows of the polynomial (ShardSums)
};

template <class Exec, class T>
class ShardedMuon {
 public:
  // Updates those of the tensors that are `sharded`: the same ones, in one order, on all ranks of the group, which must
  // outlive this. All state is created here, zero. nonfinite: see kernels/optimizer/matrix_update.hpp.
  ShardedMuon(const Exec&, const std::vector<OwnedTensor<Exec, T>>& tensors, const OptimizerOptions&,
              bool deterministic, GroupOps<Exec>& group, double* nonfinite = nullptr);
  // Updates these shards, whose groups may differ: the ranks of each have its matrices in one order.
  ShardedMuon(const Exec&, std::vector<GroupedShard<Exec, T>>, const OptimizerOptions&, bool deterministic,
              double* nonfinite);

  // Makes update t with factor times each tensor's peak rate; gradients are multiplied by gradient_scale. All ranks of
  // the groups must call it together, where a range is given for the same matrices.
  void step(const Exec& exec, std::int64_t t, double factor, double gradient_scale) {
    step(exec, t, factor, gradient_scale, 0, shards_.size());
  }
  void step(const Exec&, std::int64_t t, double factor, double gradient_scale, std::size_t begin, std::size_t end);

  std::vector<StateField> state() const;      // "/optimizer/<HF name>/momentum" and "second_moment", slabs
  std::vector<UpdateRecord> records() const;  // of each shard, without measures
  std::size_t state_bytes() const;
  std::int64_t sums_per_step() const;  // sums over the groups

 private:
  struct Shard {
    OwnedTensor<Exec, T> tensor;
    MuonRule rule;  // rule of the whole matrix
    TensorRates rates;
    CutSide cut = CutSide::rows;
    ShardSums<Exec> sums;
    bool first = false;                 // of the group
    bool sums_moments = false;          // see shard_sums
    std::size_t moments = 0;            // numbers of its second moment
    Vector<float, Exec> momentum;       // (elements)
    Vector<float, Exec> second_moment;  // (moments)
    std::int64_t calls = 0;             // updates made
    bool in_bf16() const;
    std::size_t elements() const { return tensor.master.extent(0); }
    bool tall() const { return tensor.spec.rows >= tensor.spec.cols; }
  };
  void take_state();
  std::size_t scratch() const;  // bytes that the largest shard takes
  template <class P>
  void step_as(const Exec&, Shard&, const WeightMove&, const MomentumStep&);
  template <class P>
  void move_shard(const Exec&, Shard&, const WeightMove&, Matrix<const P, Exec> direction);
  StateField moment_field(const Shard&) const;

  std::string kind_;
  MuonVariant variant_ = MuonVariant::muon;
  SecondMoment second_moment_;
  std::vector<Shard> shards_;
  Kokkos::View<float*, typename Exec::memory_space> state_;  // of all shards
  Gemm<Exec> gemm_;
  Workspace<Exec> workspace_;
  UpdateSchedule schedule_;
  double* nonfinite_;
};

}  // namespace sestina
