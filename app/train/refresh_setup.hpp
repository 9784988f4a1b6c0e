// What optimizer.refresh asks of this machine: the speed that periods follow from, and the tier where preconditioners
// lie between their uses.
#pragma once
#include <memory>
#include <string>

#include "core/deck/options.hpp"
#include "core/memory/pager.hpp"
#include "io/tokens/data_loader.hpp"
#include "parallel/plan/refresh_budget.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

// optimizer.refresh.every = "auto": the speed of this machine, the same on all ranks, which the periods follow from.

// Of the slowest worker, refreshes of each shape that the model has, measured within some seconds in all
// (measure_refresh_rate); step_s: seconds of an update here, of which the shortest of all ranks counts. Collective.
RefreshSpeed agreed_speed(double step_s, const Options&, Communicator& world);

// The same before there are updates to time: one takes three times the forward passes of its micro-batches, which are
// run here: its backward passes are twice that. What it sends and updates comes on top, so that periods are rather too
// long than too short. Collective.
RefreshSpeed measure_speed(Executor&, const SampleSet& training, const Options&, Communicator& world);

// For the optimizers of all stages of this rank.
void use_periods(Executor&, const RefreshPeriods&);

// optimizer.refresh.tier: where a rank's preconditioners lie between their uses: in a file, or, those of a device, in
// host memory.

// For the optimizers that are given it (Optimizer::page_to) before open_tier(). Null where preconditioners stay in the
// memory of the space that computes. run_dir: for optimizer.refresh.path = "".
std::shared_ptr<Pager> make_tier(const Options&, const std::string& run_dir, int rank, MemorySpace);
// Error(bad_deck) for budgets of bytes that cannot be kept, Error(cannot_create) where the disk has no room.
void open_tier(Pager&);

// Makes it for the optimizers of all stages of a rank, gives it to them and opens it; null where there is none. One
// rank may fail.
std::shared_ptr<Pager> open_tier_of(Executor&, const Options&, const std::string& run_dir, int rank, MemorySpace);

}  // namespace sestina
