#include "parallel/comm/runtime.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "parallel/comm/poll.hpp"

namespace sestina {
namespace {

constexpr const char* slurm_tasks = "SLURM_STEP_NUM_TASKS";

// An outcome as text that travels: "" for success, else code and message.
std::string outcome_of(const std::function<void()>& f) {
  const auto text = [](ExitCode code, const char* message) {
    return fmt::format("{} {}", static_cast<int>(code), message);
  };
  try {
    f();
    return "";
  } catch (const Error& error) {
    return text(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return text(ExitCode::internal, "out of memory");
  } catch (const std::exception& error) {
    return text(ExitCode::internal, error.what());
  }
}

[[noreturn]] void throw_outcome(const std::string& outcome, const std::string& whose) {
  int code = 0;
  const auto end = std::from_chars(outcome.data(), outcome.data() + outcome.size(), code).ptr;
  throw AgreedError(static_cast<ExitCode>(code), whose + std::string(end + 1));
}

// This process's number as its launcher counts; MPI may count otherwise.
int launched_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* value = std::getenv(name);
    int rank = 0;
    if (value != nullptr && std::from_chars(value, value + std::strlen(value), rank).ec == std::errc()) return rank;
  }
  return 0;
}

// All ranks that wait for a lost one would speak at once: the first rank does, else the second. In seconds, long enough
// for the launcher to end the rest.
double patience_of(int rank) {
  constexpr double second = 3, others = 6;
  return rank == 0 ? 0 : rank == 1 ? second : others;
}

// Tasks of a bare srun have no process manager: each would initialise MPI alone, or end without a word of ours.
bool has_meeting_point(const Launch& launch) {
  if (launch.variable != slurm_tasks) return true;
  for (const char* name : {"PMIX_RANK", "PMI_RANK", "PMI_FD"})
    if (std::getenv(name) != nullptr) return true;
  return false;
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

Runtime::Runtime(double start_timeout, const std::function<int()>& give_up) {
  const Launch launch = find_launch();
  if (launch.tasks == 1) {
    world_ = make_lone_communicator();
    return;
  }
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
  wait_limit() = {start_timeout, patience_of(launched_rank()), "start of MPI"};
  world_ = ranks::start(start_timeout, give_up);
  if (world_->size() != launch.tasks) {
    const int found = world_->size();
    world_.reset();
    ranks::stop(end_code_);
    fail(ExitCode::unavailable,
         "started as {} tasks ({} is set), but MPI ({}) finds {}: the launcher does not belong to this library; use "
         "the mpirun of that library, or srun --mpi=pmix",
         launch.tasks, launch.variable, ranks::library(), found);
  }
  wait_limit().later = patience_of(rank());
  node_ranks_ = world_->split_by_node()->size();
}

Runtime::~Runtime() {
  const bool several = world_->size() > 1;
  world_.reset();
  if (several) ranks::stop(end_code_);
}

void Runtime::set_start_timeout(double seconds) { wait_limit().seconds = seconds; }
void Runtime::begin_phase(const char* name) { wait_limit().phase = name; }
void Runtime::set_timeout(double seconds) {
  wait_limit().seconds = seconds;
  wait_limit().phase = nullptr;
}

void Runtime::together(const std::function<void()>& f) {
  if (size() == 1) return f();
  const std::string mine = outcome_of(f);
  call_roll("agreement");
  const std::vector<std::string> outcomes = world_->all_gather(mine);
  const bool alike = std::all_of(outcomes.begin(), outcomes.end(), [&](const auto& o) { return o == outcomes[0]; });
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    if (!outcomes[r].empty()) throw_outcome(outcomes[r], alike ? "" : fmt::format("rank {}: ", r));
}

void Runtime::end(int code) {
  if (size() == 1) return;
  end_code_ = code;
  call_roll("end of the run");
}

// Every other rank sends the first one a byte, and gets one back.
void Runtime::call_roll(const char* name) {
  std::vector<char> words(static_cast<std::size_t>(size()));
  std::vector<Message> peers;
  for (int peer = is_first() ? 1 : 0; peer < (is_first() ? size() : 1); ++peer)
    peers.push_back({peer, {block_of(&words[static_cast<std::size_t>(peer)], 1)}});
  const std::vector<Message> none;
  for (const bool to_first : {true, false}) {
    const bool sends = to_first != is_first();
    const auto exchange = world_->make_exchange(name, sends ? peers : none, sends ? none : peers);
    exchange->start();
    exchange->finish();
  }
}

void Runtime::abort(ExitCode code) {
  if (size() > 1) ranks::abort(static_cast<int>(code));
}

}  // namespace sestina
