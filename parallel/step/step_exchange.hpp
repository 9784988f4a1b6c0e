// What the ranks tell each other of every step, and what all of them know of it then: at once, or in an asynchronous
// pipeline, where nobody waits, a fixed number of updates later.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "parallel/plan/make_plan.hpp"
#include "parallel/step/lagged_gather.hpp"
#include "parallel/step/step_values.hpp"

namespace sestina {

class StepExchange {
 public:
  // Of all ranks of the plan; both must outlive it.
  StepExchange(Communicator& world, const Plan&);
  // Updates until a step is finished: delay_scale (K-1) + 1 in an asynchronous pipeline, 0 where it is at once.
  int lag() const { return lag_; }
  RankReport& mine() { return mine_; }  // this rank's, of the step under way
  // Tells these parts of it; sums are those of a synchronous step. As Executor::exchange and finish_steps.
  std::span<const FinishedStep> tell(ReportParts, std::int64_t update, const StepSums&);
  std::span<const FinishedStep> finish();

  // After so many updates, of the last of which the norms are known: those that may clip later ones.
  void start_at(std::int64_t updates, const std::vector<double>& norms);
  std::vector<double> norms() const;
  // The norm of the minibatch lag() before this one: every rank has sent its part before it began this one's last
  // forward pass. None at the beginning of a run.
  std::optional<double> norm_before(std::int64_t minibatch);

 private:
  void gather(const ReportParts&, FinishedStep&);
  void add_reports(const ReportParts&, const double* numbers, FinishedStep&);  // of all ranks
  void finish_step(const double* numbers, FinishedStep&);
  void add_updates(int rank, FinishedStep&) const;
  double norm_in(const double* numbers);
  double& norm_of(std::int64_t minibatch) { return norms_[static_cast<std::size_t>(minibatch % lag_)]; }

  Communicator& world_;
  const Plan& plan_;
  int lag_;
  RankReport mine_, of_rank_;    // of_rank_: one that is read
  ReportParts told_;             // in lagged_
  std::vector<double> numbers_;  // reports as they travel at once: of all ranks, and then this one's
  std::unique_ptr<LaggedGather> lagged_;
  std::vector<FinishedStep> steps_;  // room for all that may finish at once
  std::int64_t finished_ = 0;        // updates
  std::vector<double> norms_;        // of minibatch i in place i mod lag
  std::int64_t norms_from_ = 0;      // the first one that is known
};

}  // namespace sestina
