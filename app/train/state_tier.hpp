// optimizer.refresh.tier = "nvme": the file that a rank's preconditioners lie in between their uses.
#pragma once
#include <memory>
#include <string>

#include "core/deck/options.hpp"
#include "core/layout/pager.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

// For the optimizers that are given it (Optimizer::page_to) before open_tier(). Null where preconditioners stay in
// memory. run_dir: for optimizer.refresh.path = "".
std::shared_ptr<Pager> make_tier(const Options&, const std::string& run_dir, int rank);
// Error(bad_deck) for budgets of bytes that cannot be kept, Error(cannot_create) where the disk has no room.
void open_tier(Pager&, const Options&);

// Gives it to the optimizers of all stages of a rank, and opens it; nothing for null. One rank may fail.
template <class Exec, class T>
void open_tier_of(Executor<Exec, T>& executor, const std::shared_ptr<Pager>& tier, const Options& options) {
  if (!tier) return;
  for (std::size_t i = 0; i < executor.stage_count(); ++i) executor.stage(i).optimizer().page_to(tier);
  open_tier(*tier, options);
}

}  // namespace sestina
