// The needs of optimizer.refresh on this machine: the speed that periods follow from, and the tier where state lies
// between its uses.
#pragma once
#include <memory>
#include <string>

#include "core/deck/options.hpp"
#include "core/memory/pager.hpp"
#include "io/tokens/data_loader.hpp"
#include "parallel/plan/refresh_budget.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

// With optimizer.refresh.every = "auto" the periods follow from the speed of this machine, which is the same on all
// ranks.

// Returns the slowest worker's speed at refreshes of each shape that the model has, measured within some seconds in all
// (measure_refresh_rate). step_s: the seconds of an update here; the shortest of all ranks counts. Collective.
RefreshSpeed agreed_speed(double step_s, const Options&, Communicator& world);

// Returns the same before there are updates to time. It runs the forward passes of an update's micro-batches and takes
// three times their seconds for an update, whose backward passes take twice as long. What an update sends and updates
// is not counted. Collective.
RefreshSpeed measure_speed(Executor&, const SampleSet& training, const Options&, Communicator& world);

// Gives the periods to the optimizers of all stages of this rank.
void use_periods(Executor&, const RefreshPeriods&);

// Gives S, which optimizer.refresh.staleness = "auto" chose, to the same.
void use_staleness(Executor&, const RefreshLag&);

// Chooses who computes refreshes (optimizer.refresh.executor = "auto"), with machine.worker_gflops in the place of the
// workers' measured speed where it is given; says the table.
RefreshExecutors agreed_executors(const Executor&, RefreshSpeed, const RefreshPeriods&);
void use_executors(Executor&, const RefreshExecutors&);

// With optimizer.refresh.tier a rank's preconditioners, and with optimizer.state_tier its moments, lie in a file
// between their uses, or, those of a device, in host memory.

// Makes the tier, which optimizers are given (Optimizer::page_to) before open_tier(). Null where all state stays in the
// memory of the space that computes. run_dir is used where optimizer.refresh.path = "".
std::shared_ptr<Pager> make_tier(const Options&, const std::string& run_dir, int rank, MemorySpace);
// Throws Error(bad_deck) for budgets of bytes that cannot be kept, Error(cannot_create) where the disk has no room.
void open_tier(Pager&);

// Makes the tier for the optimizers of all stages of a rank, gives it to them and opens it; null where there is none.
// One rank may fail.
std::shared_ptr<Pager> open_tier_of(Executor&, const Options&, const std::string& run_dir, int rank, MemorySpace);

}  // namespace sestina
