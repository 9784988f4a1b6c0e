// Matrices under tensor parallelism whose update is that of the whole matrix: one rank of the group is its home (or,
// with parallel.tp_update = "duplicated", every rank is) and keeps its master weights and state. Rounds
// (update_rounds.hpp) are the micro-groups of the plan: shards of gradients travel to the homes in one all-to-all, and
// shards of updated weights back in another.
#pragma once
#include <span>
#include <vector>

#include "core/optimizer/optimizer.hpp"
#include "core/stage.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/coherence.hpp"
#include "parallel/plan/shard_layout.hpp"
#include "parallel/stage/update_rounds.hpp"

namespace sestina {

template <class Exec, class T>
class MatrixHomes {
 public:
  // Makes the homes on data-parallel rank dp_rank; the arena's shards are sent and received. Nothing is homed without
  // tensor parallelism.
  MatrixHomes(const Exec&, Communicator& tp_group, const StagePlan&, const PlanInput&, const Arena<Exec, T>&,
              int dp_rank);

  const std::vector<MatrixItem<Exec>>& items() const { return items_; }  // updated here, group by group
  std::vector<StateField> master_fields() const;                         // "/model/<HF name>", whole
  std::vector<OwnedTensor<Exec, T>> tensors() const;                     // whole, their masters alone
  void initialise(double range, std::uint64_t seed);
  // After their update, heads are scaled by this clip, which must outlive it.
  void clip_by(const QkClip<Exec, T>&);

  // Updates all homed matrices; `optimizer` holds items() after its other matrices.
  void update(Optimizer<Exec, T>& optimizer, std::int64_t t, double factor, double gradient_scale,
              Trace* trace = nullptr);
  // Sends the shards of master weights that were written to all ranks.
  void publish();
  // Does so only for groups in which a home names one of `matrices`; first: the number of items()[0] among these.
  // Returns what this rank sent.
  CoherenceBytes publish(const std::vector<std::size_t>& matrices, std::size_t first);

  double take_wait_seconds() { return rounds_.take_wait_seconds(); }  // waits for exchanges in update
  std::int64_t exchanges_per_step() const { return rounds_.exchanges_per_step(); }

 private:
  struct Homed : SentMatrix<Exec, T> {  // a matrix whose home this is
    TensorSpec spec;
    bool saved = true;
  };
  struct Group {
    std::vector<int> specs;
    std::size_t first_homed = 0, end_homed = 0;  // in homed_
    std::size_t first_item = 0, end_item = 0;    // in items_
    CoherenceBytes shards;                       // bytes that this rank sends to others as a home
    std::vector<ClippedRows<Exec, T>> clipped;   // of its matrices
  };
  static constexpr bool shared = std::is_same_v<T, float>;

  void home_matrices(const StagePlan&, const PlanInput&, int dp_rank);
  std::span<Homed> homed_in(const Group& group) {
    return std::span(homed_).subspan(group.first_homed, group.end_homed - group.first_homed);
  }
  void make_exchanges(Group&, const StagePlan&, const PlanInput&, const Arena<Exec, T>&);

  Exec exec_;
  Communicator& group_;
  std::vector<Homed> homed_;
  std::vector<Group> groups_;
  std::vector<MatrixItem<Exec>> items_;
  const QkClip<Exec, T>* clip_ = nullptr;
  std::vector<double> named_;     // by group, 1 where a home has a matrix to publish
  UpdateRounds<Exec, T> rounds_;  // one for each group
};

}  // namespace sestina
