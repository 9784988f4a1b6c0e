// optimizer.refresh.every = "auto": the speed of this machine, the same on all ranks, which the periods follow from.
#pragma once
#include "io/tokens/data_loader.hpp"
#include "parallel/plan/refresh_budget.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

// Of the slowest worker, refreshes of each shape that the model has, measured within some seconds in all
// (measure_refresh_rate); step_s: seconds of an update here, of which the shortest of all ranks counts. Collective.
RefreshSpeed agreed_speed(double step_s, const Options&, Communicator& world);

// The same before there are updates to time: one takes three times the forward passes of its micro-batches, which are
// run here: its backward passes are twice that. What it sends and updates comes on top, so that periods are rather too
// long than too short. Collective.
RefreshSpeed measure_speed(Executor&, const SampleSet& training, const Options&, Communicator& world);

// For the optimizers of all stages of this rank.
void use_periods(Executor&, const RefreshPeriods&);

}  // namespace sestina
