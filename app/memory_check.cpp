#include "app/memory_check.hpp"

#include <fstream>
#include <string>

#include "core/model_size.hpp"
#include "kernels/exec.hpp"
#include "parallel/make_plan.hpp"
#include "parallel/plan_memory.hpp"

namespace sestina {

std::uint64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  std::uint64_t kibibytes = 0;
  while (file >> word)
    if (word == "MemAvailable:" && file >> kibibytes) return kibibytes * 1024;
  return 0;
}

void require_memory(const Options& options, int rank, int node_ranks) {
  const bool own_memory = !Kokkos::SpaceAccessibility<Host, Device::memory_space>::accessible;
  if (own_memory && options.run.space == RunOptions::Space::device) return;
  const Plan plan = make_plan(options);
  const RankMemory memory = rank_memory(plan, options)[static_cast<std::size_t>(rank)];
  ModelSize size = memory.size;
  if (options.run.deterministic) {  // gradients of micro-batches wait on the levels of a tree
    const int micros = options.train.global_batch / options.train.micro_batch / options.parallel.dp;
    for (int width = 1; width < micros; width *= 2) size.gradients += memory.size.gradients;
  }
  // A checkpoint is written from a host copy of weights and state.
  const std::uint64_t snapshot = memory.checkpoint, need = size.total() + snapshot,
                      have = available_memory_bytes() / static_cast<std::uint64_t>(node_ranks);
  if (have == 0 || need <= have) return;
  const auto gb = [](std::uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  fail(ExitCode::unavailable,
       "the run needs {:.2f} GB of memory, this machine has {:.2f} GB left: weights {:.2f}, master weights {:.2f}, "
       "gradients {:.2f}, "
       "optimizer {:.2f}, activations {:.2f}, workspace {:.2f}, checkpoint copy {:.2f}; a smaller train.micro_batch or "
       "train.recompute = true "
       "shrinks the activations",
       gb(need), gb(have), gb(size.weights), gb(size.master), gb(size.gradients), gb(size.optimizer),
       gb(size.activations), gb(size.workspace), gb(snapshot));
}

}  // namespace sestina
