#include "app/start/core_share.hpp"

#include <sched.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/host_name.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

struct Holding {
  cpu_set_t cores;
  int threads = 0;
};

// Gathers the set of cores of each rank of the node.
std::vector<Holding> node_holdings(Runtime& runtime, int threads, int& me) {
  const auto node = runtime.world().split_by_node();
  Holding mine;
  CPU_ZERO(&mine.cores);
  for (const int core : process_cores()) CPU_SET(static_cast<std::size_t>(core), &mine.cores);
  mine.threads = threads;
  std::vector<Holding> all(static_cast<std::size_t>(node->size()));
  node->all_gather(&mine, sizeof mine, all.data());
  me = node->rank();
  return all;
}

bool overlap(const Holding& a, const Holding& b) {
  cpu_set_t both;
  CPU_AND(&both, &a.cores, &b.cores);
  return CPU_COUNT(&both) > 0;
}

}  // namespace

int core_sharers(Runtime& runtime) {
  if (runtime.size() == 1) return 1;
  int me = 0, sharers = 0;
  const std::vector<Holding> all = node_holdings(runtime, 0, me);
  for (const Holding& other : all) sharers += overlap(all[static_cast<std::size_t>(me)], other) ? 1 : 0;
  return std::max(1, sharers);
}

void warn_of_shared_cores(Runtime& runtime, int threads) {
  if (runtime.size() == 1) return;
  int me = 0, ranks = 0, wanted = 0;
  const std::vector<Holding> all = node_holdings(runtime, threads, me);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const Holding& other : all) {
    if (!overlap(all[static_cast<std::size_t>(me)], other)) continue;
    CPU_OR(&cores, &cores, &other.cores);
    ++ranks;
    wanted += other.threads;
  }
  const bool crowded = ranks > 1 && wanted > CPU_COUNT(&cores);
  double any = crowded ? 1 : 0;
  runtime.world().all_reduce(&any, 1, Reduction::max);
  if (any == 0) return;
  const std::string mine = crowded ? fmt::format("{} ranks with {} threads in all share {} cores of node {}", ranks,
                                                 wanted, CPU_COUNT(&cores), host_name())
                                   : "";
  for (const std::string& text : runtime.world().all_gather(mine)) {
    if (text.empty()) continue;
    if (runtime.is_first())
      spdlog::warn(
          "{}: fewer threads (run.threads, --cpus-per-task) or cores of their own (srun --cpu-bind=cores, "
          "mpirun --bind-to core) are faster",
          text);
    return;
  }
}

}  // namespace sestina
