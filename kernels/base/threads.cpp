#include "kernels/base/threads.hpp"

#include <omp.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>

namespace sestina {

std::vector<int> process_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(getpid(), sizeof cores, &cores);  // mask of the main thread, whose number is that of the process
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    if (!ids.empty()) omp_get_place_proc_ids(place, ids.data());
    for (const int id : ids)
      if (id >= 0 && id < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(id), &cores);
  }
  std::vector<int> found;
  for (int id = 0; id < CPU_SETSIZE; ++id)
    if (CPU_ISSET(static_cast<std::size_t>(id), &cores)) found.push_back(id);
  return found;
}

int bind_this_thread(const std::vector<int>& cores) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  for (const int core : cores)
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &mine);
  return sched_setaffinity(0, sizeof mine, &mine) == 0 ? 0 : errno;
}

}  // namespace sestina
