// The input and output of a step: its values, its seconds by phase, and what the ranks tell each other of every step,
// at once or a fixed number of updates later. No Kokkos.
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

// Every rank's numbers for each step become known to all ranks a fixed number of steps later, and no rank waits in
// between. So ranks of an asynchronous pipeline may be at different steps and still decide the same at the same step.
class LaggedGather {
 public:
  // lag >= 1: a rank is at most so many steps ahead of another one.
  LaggedGather(Communicator& ranks, std::size_t numbers, int lag);
  // When a step fails, numbers may still be under way and arrive at any time: their memory is then never freed.
  ~LaggedGather();
  LaggedGather(const LaggedGather&) = delete;
  LaggedGather& operator=(const LaggedGather&) = delete;

  double* mine() { return &mine_[place(next_) * numbers_]; }  // (numbers), to be filled for the next step
  // Sends mine(). Returns the numbers of all ranks, (ranks, numbers), for the step `lag` before; null where there is
  // none. They are valid until the next call.
  const double* push();
  const double* peek();  // waits for the oldest under way and returns it; null: none
  const double* pop();   // does the same and takes it out

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
  // Books waits for other ranks inside the passes and the update (Executor::take_seconds) under phases of their own,
  // and the part of the last update that a device did under the passes under the optimizer: a step shows that of the
  // step before.
  void move_waits(double gather, double reduce, double homes, double update) {
    move(Phase::forward_backward, Phase::optimizer, update);
    move(Phase::optimizer, Phase::gather, homes);
    move(Phase::forward_backward, Phase::gather, gather);
    move(Phase::forward_backward, Phase::reduce, reduce);
  }
  double total() const { return last_ - begin_; }
  // Returns the seconds by phase and, last, of the whole step.
  PhaseSeconds seconds() const {
    PhaseSeconds all{};
    std::copy(seconds_.begin(), seconds_.end(), all.begin());
    all.back() = total();
    return all;
  }
  double operator[](Phase phase) const { return seconds_[static_cast<std::size_t>(phase)]; }

 private:
  std::array<double, static_cast<std::size_t>(Phase::count)> seconds_{};
  double begin_ = 0, last_ = 0;
};

// The input of a step of the executor, and its output.

// The source of the micro-batches of a rank.
class Batches {
 public:
  virtual ~Batches() = default;
  virtual BatchView next() = 0;  // the next one of this rank's share of the data, in order
};

struct StepSums {
  double loss = 0;             // sum of token losses over the global batch
  double norm = 0;             // the norm over all gradients
  bool weights_finite = true;  // all weights that updates have written so far are finite
};

// The outcome of the passes of a step.
struct Passes {
  bool dropped = false;               // interrupted between micro-batches: no weight has changed
  std::optional<StepSums> sums = {};  // the same on all ranks, which decide by them; none: stages updated already
};

// The delays of gradients, by stage of the whole pipeline; NaN: not known. Empty: gradients are never late.
struct StageDelays {
  std::vector<double> updates;  // updates between the weights of the forward pass and those updated
  std::vector<double> drift;    // |newest - used| / |newest| of the weights, in one of metrics.every steps
  std::vector<double> cosine;   // cosine with the gradient at the newest weights, in one of metrics.tensors_every
};

// A step of which all ranks have told; the same on all of them.
struct FinishedStep {
  std::int64_t update = 0;
  StepSums sums = {};
  RankReport report;  // the reports of all ranks together
  StageDelays delays;
  std::vector<PhaseSeconds> seconds;  // by rank
};

// The messages in which the ranks tell each other of every step. All ranks know a step at once, or in an asynchronous
// pipeline, where no rank waits, a fixed number of updates later.
class StepExchange {
 public:
  // world has all ranks of the plan; both must outlive the exchange.
  StepExchange(Communicator& world, const Plan&);
  // The updates until a step is finished: delay_scale (K-1) + 1 in an asynchronous pipeline of K stages, else 0.
  int lag() const { return lag_; }
  RankReport& mine() { return mine_; }  // this rank's report of the step under way
  // Tells all ranks these parts of mine(); sums are those of a synchronous step. tell and finish serve
  // Executor::exchange and finish_steps.
  std::span<const FinishedStep> tell(ReportParts, std::int64_t update, const StepSums&);
  std::span<const FinishedStep> finish();

  // Starts after so many updates; norms are those of the last minibatches, which may clip later ones.
  void start_at(std::int64_t updates, const std::vector<double>& norms);
  std::vector<double> norms() const;
  // Returns the norm of the minibatch lag() before this one: every rank has sent its part of it before it began this
  // one's last forward pass. There is none at the beginning of a run.
  std::optional<double> norm_before(std::int64_t minibatch);

 private:
  void gather(const ReportParts&, FinishedStep&);
  void add_reports(const ReportParts&, const double* numbers, FinishedStep&);  // those of all ranks
  void finish_step(const double* numbers, FinishedStep&);
  void add_updates(int rank, FinishedStep&) const;
  double norm_in(const double* numbers);
  double& norm_of(std::int64_t minibatch) { return norms_[static_cast<std::size_t>(minibatch % lag_)]; }

  Communicator& world_;
  const Plan& plan_;
  int lag_;
  RankReport mine_, of_rank_;    // of_rank_: the report of a rank that is being read
  ReportParts told_;             // the parts that lagged_ carries
  std::vector<double> numbers_;  // reports that travel at once: those of all ranks, then this rank's
  std::unique_ptr<LaggedGather> lagged_;
  std::vector<FinishedStep> steps_;  // room for all that may finish at once
  std::int64_t finished_ = 0;        // updates
  std::vector<double> norms_;        // that of minibatch i in place i mod lag
  std::int64_t norms_from_ = 0;      // the first minibatch whose norm is known
};

}  // namespace sestina
