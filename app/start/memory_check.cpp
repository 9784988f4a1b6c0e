#include "app/start/memory_check.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>

#include "app/start/kokkos_session.hpp"
#include "core/memory/state_field.hpp"
#include "kernels/base/device_memory.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

namespace {

using Bytes = std::optional<std::uint64_t>;  // empty: unknown, or no limit

// Returns the number after the word `name` in a file of names and numbers, in units of `unit` bytes.
Bytes number_after(const std::string& path, const std::string& name, std::uint64_t unit) {
  std::ifstream file(path);
  std::string word;
  std::uint64_t number = 0;
  while (file >> word)
    if (word == name && file >> number) return number * unit;
  return std::nullopt;
}

// Returns the number of a file that holds one; "max" is none.
Bytes number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? Bytes(number) : std::nullopt;
}

std::uint64_t less(std::uint64_t limit, std::uint64_t used) { return limit - std::min(limit, used); }

// The names that one version gives to files and keys (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst of
// Linux).
struct GroupFiles {
  const char *limit, *used, *inactive_file, *active_file;
};
constexpr GroupFiles version_1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                               "total_active_file"};
constexpr GroupFiles version_2{"memory.max", "memory.current", "inactive_file", "active_file"};

void take_smaller(MemoryShare& least, const Bytes& bytes, const std::string& name) {
  if (bytes && (least.bytes == 0 || *bytes < least.bytes)) least = {name, std::max<std::uint64_t>(1, *bytes)};
}

// Pages of files can be dropped, as can those that the machine counts as available.
void take_group(MemoryShare& least, const std::string& folder, const GroupFiles& names) {
  constexpr std::uint64_t none = std::uint64_t{1} << 62;  // version 1 says no limit with a number above this
  const std::string path = folder + "/" + names.limit;
  const Bytes limit = number_in(path);
  if (!limit || *limit >= none) return;
  std::uint64_t used = number_in(folder + "/" + names.used).value_or(0);
  for (const char* file : {names.inactive_file, names.active_file})
    used = less(used, number_after(folder + "/memory.stat", file, 1).value_or(0));
  take_smaller(least, less(*limit, used), fmt::format("the control group of this process ({})", path));
}

// Takes the limits of the group "/a/b" and its parents, as far as this process sees them: a container may show only its
// own group, as the root.
void take_groups(MemoryShare& least, const std::string& root, std::string group, const GroupFiles& names) {
  while (true) {
    while (!group.empty() && group.back() == '/') group.pop_back();
    take_group(least, root + group, names);
    if (group.empty()) return;
    group.resize(group.rfind('/') == group.npos ? 0 : group.rfind('/'));
  }
}

// Reads lines "0::/a/b" of version 2, which lies in a folder of its own next to version 1, and "4:memory:/a/b" of
// version 1.
void take_all_groups(MemoryShare& least, const MemoryPlaces& places) {
  std::ifstream file(places.proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,")
      for (const char* folder : {"", "/unified"}) take_groups(least, places.groups + folder, group, version_2);
    else if (controllers.find(",memory,") != controllers.npos)
      take_groups(least, places.groups + "/memory", group, version_1);
  }
}

// Addresses that a run takes in addition to what a plan counts: with one thread 120 MiB more than it began with, as
// measured, and a stack for each thread.
constexpr std::uint64_t for_libraries = std::uint64_t{160} << 20, stack = std::uint64_t{8} << 20;

// Takes a limit that each process has to itself.
void take_limit(MemoryShare& least, decltype(RLIMIT_AS) resource, const Bytes& used, const char* name) {
  struct rlimit limit {};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  take_smaller(least, less(limit.rlim_cur, used.value_or(0)), fmt::format("this process ({})", name));
}

}  // namespace

MemoryShare process_memory(int threads, const MemoryPlaces& places) {
  MemoryShare least;
  const std::string status = places.proc + "/self/status";
  const std::uint64_t to_come = for_libraries + stack * static_cast<std::uint64_t>(std::max(0, threads - 1));
  take_limit(least, RLIMIT_AS, number_after(status, "VmSize:", 1024).value_or(0) + to_come, "ulimit -v");
  take_limit(least, RLIMIT_DATA, number_after(status, "VmData:", 1024), "ulimit -d");
  return least;
}

MemoryShare available_memory(int sharers, int threads, const MemoryPlaces& places) {
  MemoryShare least;
  take_smaller(least, number_after(places.proc + "/meminfo", "MemAvailable:", 1024), least.name);
  take_all_groups(least, places);
  least.bytes /= static_cast<std::uint64_t>(std::max(1, sharers));
  if (const MemoryShare own = process_memory(threads, places); own.bytes > 0) take_smaller(least, own.bytes, own.name);
  return least;
}

namespace {

// The ranks of a node share its devices as evenly as they can.
MemoryShare device_share(int node_ranks) {
  const DeviceMemory memory = device_memory();
  if (memory.devices == 0) return {"the device", memory.free_bytes};
  const int sharers = (node_ranks + memory.devices - 1) / memory.devices;
  return {"the device", memory.free_bytes / static_cast<std::uint64_t>(sharers)};
}

std::string size_text(std::uint64_t bytes) {
  return bytes < 100000000 ? fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6)
                           : fmt::format("{:.2f} GB", gb(bytes));
}

}  // namespace

void require_memory(const RankMemory& memory, const MemoryShare& host, const MemoryShare& device) {
  const ModelSize& size = memory.size;
  const bool has_device = device.bytes > 0;
  const auto require = [&](const MemoryShare& share, std::uint64_t need) {
    if (share.bytes == 0 || need <= share.bytes) return;
    fail(ExitCode::unavailable,
         "the run needs {} of memory, {} has {} available: weights {:.2f}, master weights {:.2f}, "
         "gradients {:.2f}, optimizer {:.2f}, activations {:.2f}, workspace {:.2f}, pipeline stash {:.2f}, "
         "exchanges {:.2f}{}{}, refresh workers {:.2f}, checkpoint copy {:.2f}; a smaller train.micro_batch or "
         "train.recompute = true shrinks the activations{}",
         size_text(need), share.name, size_text(share.bytes), gb(size.weights), gb(size.master), gb(size.gradients),
         gb(size.optimizer), gb(size.activations), gb(size.workspace), gb(size.stash), gb(size.exchanges),
         has_device ? "; on the host" : "",
         memory.host_tier > 0 ? fmt::format(", preconditioners {:.2f}", gb(memory.host_tier)) : "", gb(memory.workers),
         gb(memory.checkpoint),
         memory.checkpoint > field_stream_bytes ? ", checkpoint.async = false saves without the copy" : "");
  };
  if (has_device) require(device, size.total());
  require(host, has_device ? memory.on_host() : memory.total());
}

int planned_threads(const Options& options, int sharers) {
  if (memory_in(options.run.space) == MemorySpace::device) return 0;
  return session_threads(options.run.threads, {}, sharers, options.optimizer.refresh_workers());
}

PlannedRun plan_that_fits(const Options& options, int rank, int ranks, int node_ranks) {
  PlannedRun run{make_plan({options, ranks}), {}};
  const int threads = planned_threads(options, node_ranks);
  run.memory = rank_memory(run.plan, threads, options.checkpoint.async)[static_cast<std::size_t>(rank)];
  require_memory(run.memory, available_memory(node_ranks, threads + options.optimizer.refresh_workers()),
                 threads == 0 ? device_share(node_ranks) : MemoryShare{"the device", 0});
  return run;
}

}  // namespace sestina
