// Matrices under tensor parallelism whose update is that of the whole matrix: one rank of the group is its home (or,
// with parallel.tp_update = "duplicated", every rank is) and keeps its master weights and state. Group of matrices by
// group (micro-groups of the plan), shards of gradients travel to the homes in one all-to-all, and shards of updated
// weights back in another, while the next group's gradients and the last group's weights are under way (Canzona,
// algorithm 3).
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "core/optimizer/optimizer.hpp"
#include "core/stage.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/coherence.hpp"
#include "parallel/plan/exchange_bytes.hpp"
#include "parallel/plan/shard_layout.hpp"

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

  // Updates all homed matrices; `optimizer` holds items() after its other matrices.
  void update(Optimizer<Exec, T>& optimizer, std::int64_t t, double factor, double gradient_scale,
              Trace* trace = nullptr);
  // Sends the shards of master weights that were written to all ranks.
  void publish();
  // Does so only for groups in which a home names one of `matrices`; first: the number of items()[0] among these.
  // Returns what this rank sent.
  CoherenceBytes publish(const std::vector<std::size_t>& matrices, std::size_t first);

  double take_wait_seconds() { return std::exchange(wait_seconds_, 0.0); }  // waits for exchanges in update
  std::int64_t exchanges_per_step() const { return 2 * static_cast<std::int64_t>(groups_.size()); }

 private:
  struct Homed {  // a matrix whose home this is
    TensorSpec spec;
    bool saved = true;
    Kokkos::View<float**, Kokkos::LayoutRight, typename Exec::memory_space> master;  // (rows, cols)
    Matrix<float, Exec> gradient;                                                    // lies in its group's slot
    Matrix<T, Exec> weight;  // lies there too and is sent; the master where T is float
  };
  struct Group {
    std::vector<int> specs;
    std::size_t first_homed = 0, end_homed = 0;  // in homed_
    std::size_t first_item = 0, end_item = 0;    // in items_
    std::unique_ptr<Exchange> gradients, weights;
    CoherenceBytes shards;  // bytes that this rank sends to others as a home
  };
  // A place for the gradients and weights of one group: those of two groups that follow one another are in memory at a
  // time.
  struct Slot {
    Kokkos::View<float*, typename Exec::memory_space> gradients;
    Kokkos::View<T*, typename Exec::memory_space> weights;
  };
  static constexpr bool shared = std::is_same_v<T, float>;

  void home_matrices(const StagePlan&, const PlanInput&, int dp_rank);
  void place(Group&, Slot&);
  void wait(Exchange&);
  void make_exchanges(Group&, const StagePlan&, const PlanInput&, const Arena<Exec, T>&);
  void publish(Group&);

  Exec exec_;
  Communicator& group_;
  std::vector<Homed> homed_;
  std::vector<Group> groups_;
  std::vector<MatrixItem<Exec>> items_;
  std::vector<double> named_;  // by group, 1 where a home has a matrix to publish
  Slot slots_[group_places];
  double wait_seconds_ = 0;
};

}  // namespace sestina
