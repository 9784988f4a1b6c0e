// Helper threads run on all cores of the process, or on those of the deck, wherever the thread is bound that starts
// them. CTest runs these a second time with OMP_PROC_BIND=true and OMP_PLACES=cores, where OpenMP has bound the main
// thread before it asks.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/optimizer/refresh/worker_pool.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

std::vector<int> cores_of_this_thread() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(static_cast<std::size_t>(core), &mine)) cores.push_back(core);
  return cores;
}

struct LookTask : WorkerTask {
  void run(std::size_t) override { cores = cores_of_this_thread(); }
  std::vector<int> cores;
};

std::vector<int> cores_of_worker(const std::vector<int>& asked) {
  WorkerPool pool({.cores = asked}, 1);
  const auto task = std::make_shared<LookTask>();
  pool.submit(task);
  pool.wait(*task);
  return task->cores;
}

TEST(HelperCores, AreThoseOfTheProcess) {
  const std::vector<int> all = process_cores(), bound_to = cores_of_this_thread();
  EXPECT_TRUE(std::includes(all.begin(), all.end(), bound_to.begin(), bound_to.end()));
  if (omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 1) {
    EXPECT_LT(bound_to.size(), all.size());
  }
  std::vector<int> seen;
  quiet_thread([&] { seen = cores_of_this_thread(); }).join();
  EXPECT_EQ(seen, all);
  EXPECT_EQ(cores_of_worker({}), all);
  EXPECT_EQ(cores_of_worker({all.back()}), std::vector<int>{all.back()});
  EXPECT_EQ(cores_of_this_thread(), bound_to);  // as before
  EXPECT_EQ(thread_count(0), static_cast<int>(all.size()));
}

// A thread that OpenMP or a pool bound starts helpers, too.
TEST(HelperCores, DoNotFollowTheThreadThatStartsThem) {
  const std::vector<int> all = process_cores();
  std::vector<int> seen;
  quiet_thread(
      [&] {
        EXPECT_EQ(cores_of_this_thread(), std::vector<int>{all.front()});
        quiet_thread([&] { seen = cores_of_this_thread(); }).join();
      },
      {all.front()})
      .join();
  EXPECT_EQ(seen, all);
}

}  // namespace
}  // namespace sestina
