// All that `sestina plan` knows of a run, and the two ways to print it. No Kokkos.
#pragma once
#include <algorithm>
#include <optional>
#include <string>

#include "core/deck/options.hpp"
#include "core/layout/plan.hpp"
#include "parallel/exchange/rank_memory.hpp"
#include "parallel/plan/pipeline_schedule.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/plan_reading.hpp"
#include "parallel/plan/refresh_budget.hpp"

namespace sestina {

struct RunPlan {
  Options options;
  Plan plan;                       // has one stage on each pipeline rank
  std::vector<RankMemory> memory;  // by rank, stage by stage
  std::vector<Collective> sent;    // in one step
  std::size_t needed_bytes = 0;    // bytes of the fullest rank
  // The memories that the need is compared with: those of the deck's machine, or of this one for a run of one rank.
  // Empty: not known.
  struct Memory {
    std::string name;  // "a device", "a node", "this machine"
    std::size_t needed = 0, available = 0;
    bool fits() const { return needed <= available; }
  };
  std::vector<Memory> compared;
  double flops_per_token = 0, tokens_per_step = 0, flops_per_step = 0;
  std::optional<double> forward_backward_s, optimizer_s, network_s, checkpoint_s, nvme_s,
      link_s;                                         // empty: the machine is not known
  std::optional<RefreshPeriods> refresh_periods;      // with every = "auto", where the machine is known
  std::optional<RefreshLag> refresh_lag;              // the same with staleness = "auto"
  std::optional<RefreshExecutors> refresh_executors;  // with executor = "auto", where the machine is known
  // Asynchronous refreshes of the busiest rank in an update: what its workers compute, over the mean of all ranks, and
  // their time.
  std::optional<double> refresh_flops, refresh_ratio, refresh_s;
  struct Link {
    double refreshes = 0, tiers = 0;
  } link;                               // bytes between device and host in an update, of the rank with most of each
  double first_bases_flops = 0;         // once in a run, of the busiest rank; 0: there are none
  std::optional<double> first_bases_s;  // their time at the machine's peak
  MeasuredShapes measured;
  double planning_s = 0;
  // Returns the seconds of a step when all that is sent is hidden under the model's work; updates wait for workers that
  // take longer than a step.
  std::optional<double> step_s() const {
    if (!forward_backward_s || !optimizer_s) return std::nullopt;
    return std::max(*forward_backward_s + *optimizer_s, refresh_s.value_or(0));
  }
};

RunPlan make_run_plan(const Options&);

// One row of the memory table.
struct MemoryKind {
  const char* name;  // its name in JSON
  const char* what;
  std::size_t bytes;
};
std::vector<MemoryKind> kinds_of(const RankMemory&, bool shared_weights);

void print_json(const RunPlan&);
void print_text(const RunPlan&);

void print_json(const PaperReading&);
void print_text(const PaperReading&);

}  // namespace sestina
