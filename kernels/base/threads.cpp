#include "kernels/base/threads.hpp"

#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace sestina {
namespace {

// What sched_getattr(2) and sched_setattr(2) exchange, in its first form: for a policy that is not of real time, Linux
// takes `runtime` for the length of time slices.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes), policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0, deadline = 0, period = 0;  // in nanoseconds
};

// Returns false where the system does not tell, or the calling thread has no slices (real time, idle work).
bool read_slices(SchedulingAttributes& attributes) {
  return syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0U) == 0 &&
         (attributes.policy == SCHED_OTHER || attributes.policy == SCHED_BATCH);
}

}  // namespace

void shorten_time_slices() {
  constexpr std::uint64_t slice = 300'000;
  SchedulingAttributes attributes;
  if (!read_slices(attributes)) return;
  attributes.runtime = slice;
  syscall(SYS_sched_setattr, 0, &attributes, 0U);  // refused: slices stay as they are, which costs time alone
}

double time_slice_seconds() {
  SchedulingAttributes attributes;
  return read_slices(attributes) ? 1e-9 * static_cast<double>(attributes.runtime) : 0;
}

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
