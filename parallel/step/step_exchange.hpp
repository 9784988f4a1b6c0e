// What goes into a step and what comes out of it: its values, its seconds by phase, and what the ranks tell each
// other of every step, at once or a fixed number of updates later. No Kokkos.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/stage_values.hpp"
#include "kernels/base/threads.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/rank_report.hpp"

namespace sestina {

// Numbers of every rank for each step, known to all a fixed number of steps later: nobody waits for anybody in between.
// So ranks of an asynchronous pipeline may stand at different steps, and still decide the same at the same one.
class LaggedGather {
 public:
  // lag >= 1: a rank runs at most so many steps ahead of another one.
  LaggedGather(Communicator& ranks, std::size_t numbers, int lag);
  // Something may be under way still when a step fails, and may arrive at any time: into memory that stays.
  ~LaggedGather();
  LaggedGather(const LaggedGather&) = delete;
  LaggedGather& operator=(const LaggedGather&) = delete;

  double* mine() { return &mine_[place(next_) * numbers_]; }  // (numbers), to be filled for the next step
  // They are on their way. Returns those of all ranks, (ranks, numbers), of the step `lag` before: null where there is
  // none. Valid until the next call.
  const double* push();
  const double* peek();  // the oldest under way, waited for; null: none
  const double* pop();   // the same, and it is under way no more

 private:
  std::size_t place(std::int64_t step) const { return static_cast<std::size_t>(step) % gathers_.size(); }
  std::size_t numbers_;
  std::vector<double> mine_, all_;                  // by place
  std::vector<std::unique_ptr<Exchange>> gathers_;  // lag + 1 of them take turns
  std::int64_t next_ = 0, oldest_ = 0;
};

// The seconds of one step on this rank, by phase.

// Adds up the seconds of each phase of one step: what has passed since the last call belongs to the phase that ends.
class PhaseClock {
 public:
  void start() {
    seconds_.fill(0);
    begin_ = last_ = now_seconds();
  }
  void end(Phase phase) {
    const double now = now_seconds();
    seconds_[static_cast<std::size_t>(phase)] += now - last_;
    last_ = now;
  }
  // Books seconds of one phase under another that went on inside it.
  void move(Phase from, Phase to, double seconds) {
    seconds_[static_cast<std::size_t>(from)] -= seconds;
    seconds_[static_cast<std::size_t>(to)] += seconds;
  }
  // Waits for other ranks inside of the passes and the update (Executor::take_seconds) as phases of their own; and what
  // of the last update a device did under the passes, as part of an update: a step shows that of the one before.
  void move_waits(double gather, double reduce, double homes, double update) {
    move(Phase::forward_backward, Phase::optimizer, update);
    move(Phase::optimizer, Phase::gather, homes);
    move(Phase::forward_backward, Phase::gather, gather);
    move(Phase::forward_backward, Phase::reduce, reduce);
  }
  double total() const { return last_ - begin_; }
  // Seconds by phase and, last, of all.
  std::array<double, static_cast<std::size_t>(Phase::count) + 1> seconds() const {
    std::array<double, static_cast<std::size_t>(Phase::count) + 1> all{};
    std::copy(seconds_.begin(), seconds_.end(), all.begin());
    all.back() = total();
    return all;
  }
  double operator[](Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

 private:
  std::array<double, static_cast<std::size_t>(Phase::count)> seconds_{};
  double begin_ = 0, last_ = 0;
};

// What goes into a step of the executor, and what comes out of it.

// Where the micro-batches of a rank come from.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual BatchView next() = 0;  // of this rank's share of the data, in order
};

struct StepSums {
  double loss = 0;             // sum of token losses over the global batch
  double norm = 0;             // over all gradients
  bool weights_finite = true;  // all that updates have written so far
};

// What the passes of a step came to.
struct Passes {
  bool dropped = false;               // interrupted between micro-batches: no weight has changed
  std::optional<StepSums> sums = {};  // the same on all ranks, for them to decide; none: stages updated in between
};

// How late gradients were, by stage of the whole pipeline; NaN: not known. Empty: gradients are never late.
struct StageDelays {
  std::vector<double> updates;  // between the weights of the forward pass and those that are updated
  std::vector<double> drift;    // |newest - used| / |newest| of the weights, in one of metrics.every steps
  std::vector<double> cosine;   // of the gradient with that at the newest weights, in one of metrics.tensors_every
};

// A step of which all ranks have told; the same on all of them.
struct FinishedStep {
  std::int64_t update = 0;
  StepSums sums;
  RankReport report;  // of all ranks
  StageDelays delays;
};

// What the ranks tell each other of every step, and what all of them know of it then: at once, or in an asynchronous
// pipeline, where nobody waits, a fixed number of updates later.
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
