#include "parallel/comm/runtime.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"
#include "kernels/blas/instruction_set.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/comm/poll.hpp"

namespace sestina {

namespace {

constexpr const char* slurm_tasks = "SLURM_STEP_NUM_TASKS";

// Returns this process's number as its launcher counts; MPI may count otherwise.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* value = std::getenv(name);
    int rank = 0;
    if (value != nullptr && std::from_chars(value, value + std::strlen(value), rank).ec == std::errc()) return rank;
  }
  return 0;
}

// All ranks that wait for a lost one would speak at once: the first rank does, else the second. The times, in seconds,
// are long enough for the launcher to end the rest.
double patience_of(int rank) {
  constexpr double second = 6, others = 9;
  return rank == 0 ? 0 : rank == 1 ? second : others;
}

// Tasks of a bare srun have no process manager: each would initialise MPI alone, or end without a message from Sestina.
bool has_meeting_point(const Launch& launch) {
  if (launch.variable != slurm_tasks) return true;
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD"})
    if (std::getenv(name) != nullptr) return true;
  return false;
}

void require_meeting(const Launch& launch) {
  if (!ranks::available())
    fail(
        ExitCode::unavailable,
        "started as {} tasks ({} is set), but this program was built without MPI (SESTINA_ENABLE_MPI): start it as one "
        "task, or each would train the same model",
        launch.tasks, launch.variable);
  if (!has_meeting_point(launch))
    fail(ExitCode::unavailable,
         "srun started {} tasks, but without PMI, so they cannot connect: start them with srun --mpi=pmix, or with "
         "mpirun inside the job",
         launch.tasks);
}

}  // namespace

Launch find_launch() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", slurm_tasks}) {
    const char* value = std::getenv(name);
    int tasks = 0;
    if (value == nullptr || std::from_chars(value, value + std::strlen(value), tasks).ec != std::errc()) continue;
    if (tasks > 1) return {tasks, name};
  }
  return {};
}

Runtime::Runtime(const RankSource& source, double start_timeout, const std::function<int()>& give_up) {
  const bool hosted = source.communicator && ranks::running();
  const Launch launch = source.communicator && !hosted ? find_launch() : Launch{};
  if (!hosted && launch.tasks == 1) {
    world_ = make_lone_communicator();
    return;
  }
  if (!hosted) require_meeting(launch);
  start_ranks(source, start_timeout, give_up);
  if (!hosted && source.every_task) require_every_task(launch);
}

void Runtime::start_ranks(const RankSource& source, double start_timeout, const std::function<int()>& give_up) {
  wait_limit() = {.seconds = start_timeout, .later = patience_of(launched_rank()), .phase = "start of MPI"};
  world_ = ranks::start(source, start_timeout, give_up);
  started_ = true;
  wait_limit().later = patience_of(rank());
  const std::unique_ptr<Communicator> node = world_->split_by_node();
  node_ranks_ = node->size();
  node_rank_ = node->rank();
  wait_limit().shares_cores = node_ranks_ > static_cast<int>(process_cores().size());
  if (wait_limit().shares_cores) shorten_time_slices();
  if (size() == 1) world_ = make_lone_communicator();
}

void Runtime::require_every_task(const Launch& launch) {
  if (size() == launch.tasks) return;
  const int found = size();
  world_.reset();
  ranks::stop(end_code_);
  fail(ExitCode::unavailable,
       "started as {} tasks ({} is set), but MPI ({}) finds {}: the launcher does not belong to this library; use "
       "the mpirun of that library, or srun --mpi=pmix",
       launch.tasks, launch.variable, ranks::library(), found);
}

Runtime::~Runtime() {
  world_.reset();
  if (started_) ranks::stop(end_code_);
}

void Runtime::set_start_timeout(double seconds) { wait_limit().seconds = seconds; }
void Runtime::begin_phase(const char* name) { wait_limit().phase = name; }
void Runtime::set_timeout(double seconds) {
  wait_limit().seconds = seconds;
  wait_limit().phase = nullptr;
}

void Runtime::together(const std::function<void()>& f) { agree(*world_, f); }
void Runtime::phase(const char* name, const std::function<void()>& f) {
  begin_phase(name);
  together(f);
}

void Runtime::end(int code) {
  if (size() == 1) return;
  end_code_ = code;
  call_roll(*world_, "end of the run");
}

void Runtime::abort(ExitCode code) {
  if (size() > 1) ranks::abort(static_cast<int>(code));
}

void require_one_instruction_set(Communicator& world, int group, const std::string& key, const std::string& allowed) {
  const std::vector<std::string> sets = world.all_gather(std::string(instruction_set()));
  for (std::size_t rank = 0; rank < sets.size(); ++rank) {
    const std::size_t first = rank - rank % static_cast<std::size_t>(group);
    if (sets[rank] != sets[first])
      fail_on_all(ExitCode::bad_deck, "{}: got {} on rank {} and {} on rank {}, which give other bits, allowed {}", key,
                  sets[first], first, sets[rank], rank, allowed);
  }
}

ProcessGrid make_grid(Communicator& world, int dp, int tp, int node_size, bool device) {
  SESTINA_REQUIRE(world.size() == dp * tp, "{} ranks for {} x {}", world.size(), dp, tp);
  ProcessGrid grid{dp, tp, world.rank() / tp, world.rank() % tp, nullptr, nullptr};
  const int members = node_size > 0 ? std::max(1, node_size / tp) : 0;  // ranks of a data-parallel group on one node
  grid.dp_group = with_node_groups(world.split(grid.tp_rank, grid.dp_rank), members);
  grid.tp_group = world.split(grid.dp_rank, grid.tp_rank);
  if (device && world.size() > 1) {
    grid.dp_group = on_device(std::move(grid.dp_group));
    grid.tp_group = on_device(std::move(grid.tp_group));
  }
  return grid;
}

}  // namespace sestina
