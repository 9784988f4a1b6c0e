// optimizer.refresh.tier: where a rank's preconditioners lie between their uses: in a file, or, those of a device, in
// host memory.
#pragma once
#include <memory>
#include <string>

#include "core/deck/options.hpp"
#include "core/memory/pager.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

// For the optimizers that are given it (Optimizer::page_to) before open_tier(). Null where preconditioners stay in the
// memory of the space that computes. run_dir: for optimizer.refresh.path = "".
std::shared_ptr<Pager> make_tier(const Options&, const std::string& run_dir, int rank, MemorySpace);
// Error(bad_deck) for budgets of bytes that cannot be kept, Error(cannot_create) where the disk has no room.
void open_tier(Pager&);

// Makes it for the optimizers of all stages of a rank, gives it to them and opens it; null where there is none. One
// rank may fail.
std::shared_ptr<Pager> open_tier_of(Executor&, const Options&, const std::string& run_dir, int rank, MemorySpace);

}  // namespace sestina
