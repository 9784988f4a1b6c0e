// The training run of one rank: it owns all parts of the run and takes the steps, each in a few calls of the executor
// (parallel/step/executor.hpp).
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "app/audit/audit.hpp"
#include "app/start/memory_check.hpp"
#include "app/start/run_dir.hpp"
#include "app/start/stop.hpp"
#include "app/train/refresh_setup.hpp"
#include "app/train/run_trace.hpp"
#include "app/train/step_report.hpp"
#include "app/train/training_batches.hpp"
#include "app/train/update_proof.hpp"
#include "app/watch/rank_pace.hpp"
#include "app/watch/rollback.hpp"
#include "core/deck/options.hpp"
#include "core/memory/pager.hpp"
#include "core/optimizer/learning_rate_schedule.hpp"
#include "core/planned_fault.hpp"
#include "core/spike_bound.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/report/energy.hpp"
#include "parallel/comm/runtime.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

// The inputs of a run that train_start.hpp finds before Kokkos starts; the same on all ranks.
struct TrainSetup {
  Options options;
  PlannedRun planned;
  std::string deck;  // the resolved deck, TOML; stored in every checkpoint
  std::string run_dir;
  std::int64_t start_step = 0;   // updates of the checkpoint, 0 fresh or weights alone
  std::string checkpoint;        // the one to start from, "" = fresh
  bool weights_only = false;     // takes the weights alone from it: step, data position and optimizer start over
  bool imported = false;         // the checkpoint is an import: weights alone
  bool progress = true;          // a progress bar, where it can be shown
  bool fork = false;             // the checkpoint belongs to another run directory
  std::string tokenizer_digest;  // digest of data.tokenizer, "" none
  std::vector<CompanionFile> companions = {};  // on the first rank: files that its checkpoints carry
  Poll poll = {};                              // called while the checkpoint is read; throws when told to stop
  std::vector<std::string> warnings = {};      // warnings given before there was a log
  EnergyCounters::Options energy = {};
  const RunDir* held = nullptr;            // the lock on run_dir; null on all ranks but the first
  std::optional<PlannedFault> fault = {};  // a fault on purpose (SESTINA_FAULT)
  std::optional<Rollback> rollback = {};   // the run has gone back to the checkpoint
};

enum class StepOutcome {
  updated,
  refused,   // a step that is not finite is skipped
  dropped,   // a rank voted to stop during the step
  goes_back  // the run is to go on from a checkpoint (Trainer::rollback)
};

class Trainer final {
 public:
  // Opens the data, builds the model and loads the checkpoint. Throws Error(stopped_*) when told to stop meanwhile.
  Trainer(const StageMaker&, const TrainSetup&, Runtime&, const SampleSet& training, const SampleSet* validation, Stop&,
          Metrics&);
  // Runs until run.steps, a stop or a failure; always leaves a final checkpoint unless its save failed, or the run is
  // to go back.
  ExitCode run();
  // Returns what another Trainer is to start from, when run() has ended for that.
  const std::optional<Rollback>& rollback() const { return rollback_; }
  StepOutcome step();  // runs one update

 private:
  void start_audits(const StageMaker&);
  Passes audited_passes();  // those of the update under way, again where an audit says so
  // Returns what an audit says of the passes; false: they are to be run again. wrong: how often that was so before.
  bool is_right(int wrong);
  Passes run_passes(const std::function<bool()>& interrupted = {});  // those of the update under way
  Passes run_passes_again();  // the same: faults on purpose that do not persist are over
  bool accept(const StepSums&);
  void update();
  void finish(const FinishedStep&);
  void finish_steps();  // finishes all that are not finished yet
  // Applies run.on_nonfinite. late: the step, where its stages are updated already.
  bool finite(std::int64_t update, double loss, double norm, const FinishedStep* late = nullptr);
  std::string find_first_bad(std::int64_t update, const FinishedStep* late);  // says where it began; collective
  [[noreturn]] void fail_weights(std::int64_t update);                        // fails on all ranks
  // The calls of trainer_spikes.cpp.
  StepOutcome hold_spike(const StepSums&);     // before an update that can be held back
  StepOutcome compute_again(const StepSums&);  // what to do with the update then
  void watch_finished(const FinishedStep&);    // after it
  void tell(const char* event, const std::string& what, std::int64_t step);
  void note_spike(std::int64_t update, const Spike&, bool made);
  bool find_rollback(const Spike&);     // sets rollback_; false without a checkpoint; collective
  std::string newest_own_checkpoint();  // verified; on the first rank
  void save_spikes(nlohmann::json& extra) const;
  void load_spikes(const nlohmann::json& extra);
  [[noreturn]] void fail_diverged(const std::string& what) { fail_unsafe(ExitCode::diverged, "diverged", what); }
  [[noreturn]] void fail_unsafe(ExitCode, const char* event, const std::string& what);  // on all ranks; saves nothing
  void evaluate();
  void require_data(bool saved);  // fails on all ranks where one of them voted so
  void save();
  void require_run_dir();                                 // requires that it is still there, before a save
  void require_finite_state(const std::string& problem);  // on all ranks; problem: of the state saved here
  void wait_for_saves();                                  // waits for those under way on all ranks
  void drain_events();
  // Returns 0 where fewer than `in_a_row` saves have failed in a row, 1 where the disk is the cause, 2 where memory is.
  double failed_saves(int in_a_row) const;
  [[noreturn]] void fail_unsaved(double failed, const char* what);  // fails on all ranks; failed: the largest of all
  bool stop_voted();                                                // votes on all ranks together
  void load();
  void set_refreshes();  // optimizer.refresh.every, staleness, executor = "auto"; collective
  void set_staleness(bool is_new, const RefreshSpeed&);
  void drain_pipeline();  // checkpoint.pipeline
  void load_in_flight(const CheckpointReader&, const nlohmann::json& extra);
  void load_refreshes(const nlohmann::json& extra);
  std::vector<StateField> all_fields() const;
  void note_refresh_failures();  // notes those of preconditioners since the last update
  void write_diagnostics();
  void write_rotations();         // and notes those above their bound; collective
  void note_early_merges();       // collective
  void prove_updates(bool due);   // after an update, with all steps finished; due: writes its lines; collective
  void fill_report(RankReport&);  // fills in this rank's step that ends now
  void fill_energy(RankStep&);
  TierReport take_traffic();
  void report(const FinishedStep&);
  void tell_slow_rank(std::int64_t step);  // of the last metrics.every updates
  Votes votes();                           // those of this rank
  void count_votes(const Votes&);          // counts the votes of all ranks
  void write_loads();                      // writes loads of the updates since the last call; collective
  RunState run_state() const;
  double mean_loss(const StepSums& sums) const {
    return sums.loss / (static_cast<double>(options_.train.global_batch) * options_.data.sequence_length);
  }
  bool several() const { return runtime_.size() > 1; }

  const TrainSetup& setup_;
  const Options& options_;
  Runtime& runtime_;
  Stop& stop_;
  Metrics& metrics_;
  bool on_device_;
  RunTrace trace_;
  PlannedFlips flips_;
  Executor executor_;
  Pager::Counts moved_;          // of the tier, when the last step was reported
  std::shared_ptr<Pager> tier_;  // the tier of state; null: it stays in memory
  Schedule schedule_;
  TrainingBatches batches_;
  const SampleSet& training_;
  const SampleSet* validation_;
  std::unique_ptr<UpdateDiagnostics> diagnostics_;  // only with metrics.tensors_every, synchronous
  std::unique_ptr<BitAudit> bits_;                  // null: no audits, and no flips planned
  std::unique_ptr<Audit> audit_;                    // null: run.audit_every = 0
  UpdateProof proof_;
  bool turned_far_ = false;  // a rotation was above its bound when they were measured last
  bool proved_ = false;      // every tensor gets the update that the deck asks for
  CheckpointWriter checkpoints_;
  StepReport report_;
  const ReportParts told_;      // parts of a step's report that all ranks are told
  RefreshPeriods periods_;      // with every = "auto": chosen at the start of the run, and kept
  RefreshLag lag_;              // the same with staleness = "auto"
  RefreshExecutors executors_;  // the same with executor = "auto"
  PhaseClock& clock_;
  EnergyCounters energy_;
  double processor_seconds_ = 0;  // of this rank, when the step began
  std::int64_t step_ = 0, saved_step_ = -1, newest_step_ = -1, skipped_ = 0, skipped_in_a_row_ = 0,
               refresh_failures_ = 0;
  std::uint64_t sample_ = 0, tokens_ = 0;  // next sample to train on; tokens seen
  double loss_ = 0, longest_step_ = 0;
  double update_seconds_ = 0;  // this rank's seconds in the updates_ since write_loads()
  std::int64_t updates_ = 0;
  bool save_voted_ = false, stopped_ = false;
  double saves_fail_ = 0;              // failed_saves() of all ranks
  std::optional<SpikeWatch> spikes_;   // none: run.on_spike = "off"
  std::vector<SampleRange> left_out_;  // by the rollbacks that the run has seen
  std::optional<Rollback> rollback_;
  RankPace pace_;
  int slow_rank_ = -1;  // that was told last; -1: none is slow
};

}  // namespace sestina
