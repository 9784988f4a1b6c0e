// Matrices that are updated in shares on the ranks of a stage (parallel.partition = "groups",
// parallel/plan/matrix_groups.hpp). Round by round (update_rounds.hpp), sums of gradients travel from the data-parallel
// rank that has them, with all its tensor-parallel shards, to the ranks of the shares, and updated shares back.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/optimizer/methods/sharded_muon.hpp"
#include "core/optimizer/optimizer.hpp"
#include "core/stage.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/tensor_group.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/stage/update_rounds.hpp"

namespace sestina {

template <class Exec, class T>
class StageShares {
 public:
  // Makes the shares of this rank of the stage, whose ranks are `all` (dp_rank * tp + tp_rank). Collective. The arena's
  // gradients are sent, its weights received; nonfinite: see kernels/optimizer/matrix_update.hpp.
  StageShares(const Exec&, Communicator& all, const StagePlan&, const PlanInput&, const Arena<Exec, T>&,
              double* nonfinite);

  const std::vector<MatrixItem<Exec>>& items() const { return items_; }  // those that are updated by themselves
  // Adds all shares, and the groups in which they are updated (null: by themselves).
  void add_tensors(std::vector<OwnedTensor<Exec, T>>& tensors, std::vector<GroupOps<Exec>*>& groups);
  std::vector<StateField> master_fields() const;  // "/model/<HF name>", slabs
  // Makes the state of items(), which is among the fields, that of whole matrices, and adds the other shares' own.
  void add_optimizer_fields(std::vector<StateField>& fields) const;
  std::vector<UpdateRecord> records() const { return together_->records(); }  // without those of items()
  void initialise(double range, std::uint64_t seed);
  // After their update, heads are scaled by this clip, which must outlive it.
  void clip_by(const QkClip<Exec, T>&);

  // Updates all shares; `optimizer` holds items() after its other matrices.
  void update(Optimizer<Exec, T>& optimizer, std::int64_t t, double factor, double gradient_scale,
              Trace* trace = nullptr);
  // Sends the shares of master weights that were written to all ranks that compute with them.
  void publish();

  double take_wait_seconds() { return exchanges_.take_wait_seconds(); }  // waits for exchanges in update
  std::int64_t exchanges_per_step() const { return exchanges_.exchanges_per_step(); }
  std::int64_t sums_per_step() const { return together_->sums_per_step(); }
  void complete();  // see Communicator

 private:
  struct Held : SentMatrix<Exec, T> {  // a share of this rank
    MatrixShare share;
    TensorSpec spec;  // of the whole matrix
    OwnedTensor<Exec, T> tensor() const;
  };
  struct Round {
    std::size_t first_held = 0, end_held = 0;          // in held_
    std::size_t first_item = 0, end_item = 0;          // in items_
    std::size_t first_together = 0, end_together = 0;  // of the shards that ranks update together
    std::vector<ClippedRows<Exec, T>> clipped;         // of all its shares
  };
  using Blocks = std::map<int, std::vector<Block>>;  // by peer
  static constexpr bool shared = std::is_same_v<T, float>;

  void make_groups(Communicator& all, const StagePlan&);
  void hold(const StagePlan&, const std::vector<std::size_t>& rounds);
  std::span<Held> held_in(const Round& round) {
    return std::span(held_).subspan(round.first_held, round.end_held - round.first_held);
  }
  void add_items(const StagePlan&, const PlanInput&);
  static OwnedMatrix<Exec> part_of_share(const Held&, const MatrixPart&);
  void make_exchanges(const Round&, const StagePlan&, std::size_t begin, std::size_t end, const PlanInput&,
                      const Arena<Exec, T>&);

  Exec exec_;
  std::unique_ptr<Communicator> all_;
  std::map<int, std::unique_ptr<Communicator>> groups_;  // by size: the group of that size that this rank is in
  std::map<int, TensorGroup<Exec>> sums_;
  std::vector<Held> held_;
  std::vector<Round> rounds_;
  std::vector<MatrixItem<Exec>> items_;
  OptimizerOptions optimizer_;
  std::map<std::string, std::pair<TensorSpec, SeparatePart>>
      blocks_;  // items that are blocks, by name: of which matrix
  std::unique_ptr<ShardedMuon<Exec, T>> together_;
  const QkClip<Exec, T>* clip_ = nullptr;
  UpdateRounds<Exec, T> exchanges_;  // of rounds_
};

}  // namespace sestina
