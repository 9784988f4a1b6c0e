#include "parallel/runtime.hpp"

#include <charconv>
#include <cstdlib>
#include <cstring>

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

[[noreturn]] void throw_outcome(const std::string& outcome) {
  int code = 0;
  const auto end = std::from_chars(outcome.data(), outcome.data() + outcome.size(), code).ptr;
  throw AgreedError(static_cast<ExitCode>(code), end + 1);
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

Runtime::Runtime(double timeout) {
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
         "srun started {} tasks, but gave them no way to find each other: start them with srun --mpi=pmix, or with "
         "mpirun inside the job",
         launch.tasks);
  world_ = ranks::start(timeout);
  if (world_->size() != launch.tasks) {
    const int found = world_->size();
    world_.reset();
    ranks::stop();
    fail(ExitCode::unavailable,
         "started as {} tasks ({} is set), but MPI ({}) finds {}: the launcher and the library do not know each other; "
         "use the mpirun of that library, or srun --mpi=pmix",
         launch.tasks, launch.variable, ranks::library(), found);
  }
  node_ranks_ = world_->split_by_node()->size();
}

Runtime::~Runtime() {
  const bool several = world_->size() > 1;
  world_.reset();
  if (several) ranks::stop();
}

void Runtime::set_timeout(double seconds) {
  if (size() > 1) ranks::set_timeout(seconds);
}

void Runtime::together(const std::function<void()>& f) {
  if (size() == 1) return f();
  for (const std::string& outcome : world_->all_gather(outcome_of(f)))
    if (!outcome.empty()) throw_outcome(outcome);
}

void Runtime::abort(ExitCode code) {
  if (size() > 1) ranks::abort(static_cast<int>(code));
}

}  // namespace sestina
