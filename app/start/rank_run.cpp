#include "app/start/rank_run.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <cstdio>

#include "app/start/core_share.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

void end_all(Runtime& runtime, ExitCode code, const char* message) {
  std::fflush(stdout);
  std::fprintf(stderr, "sestina: error: rank %d: %s\n", runtime.rank(), message);
  runtime.abort(code);
}

// Ends the ranks when all data are saved and all know the exit code: a rank that is lost from here on changes nothing.
void end_together(Runtime& runtime, int code) {
  try {
    runtime.end(code);
  } catch (const Error& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "sestina: warning: rank %d: %s; the run is over, it ends with code %d\n", runtime.rank(),
                 error.what(), code);
    runtime.abort(static_cast<ExitCode>(code));
  }
}

}  // namespace

void require_one_task(const char* verb) {
  const Launch launch = find_launch();
  if (launch.tasks > 1)
    fail(ExitCode::unavailable,
         "{} runs as one process, but {} tasks were started ({} is set); train, eval, generate, diagnose and bench "
         "step take several",
         verb, launch.tasks, launch.variable);
}

int run_on_ranks(Runtime& runtime, const std::function<int()>& verb) {
  if (runtime.size() == 1) return verb();
  try {
    const int code = verb();
    end_together(runtime, code);
    return code;
  } catch (const AgreedError& error) {
    // This is done before any rank ends: a launcher may end the rest at the first exit code other than 0.
    std::fflush(stdout);
    if (runtime.is_first()) std::fprintf(stderr, "sestina: error: %s\n", error.what());
    end_together(runtime, static_cast<int>(error.code()));
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    end_all(runtime, failure.code, failure.message.c_str());
    return static_cast<int>(failure.code);
  }
}

void warn_on_stderr(const Runtime& runtime) {
  auto logger = std::make_shared<spdlog::logger>("sestina", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("sestina: warning: %v");
  logger->set_level(runtime.is_first() ? spdlog::level::warn : spdlog::level::off);
  spdlog::set_default_logger(logger);
}

std::unique_ptr<KokkosSession> start_kokkos(Runtime& runtime, int threads, std::vector<std::string> flags, int workers,
                                            const RunPhase& phase) {
  if (!runtime.is_first()) flags.push_back("--kokkos-disable-warnings");
  const int sharers = core_sharers(runtime);
  std::unique_ptr<KokkosSession> session;
  phase("starting Kokkos", [&] { session = std::make_unique<KokkosSession>(threads, flags, sharers, workers); });
  warn_of_shared_cores(runtime, Kokkos::num_threads() + workers);
  if (const int cores = available_cores() / sharers; workers > 0 && Kokkos::num_threads() + workers > cores)
    spdlog::warn(
        "{} refresh workers share {} cores with {} compute threads: fewer of both (optimizer.refresh.workers, "
        "run.threads) may be faster",
        workers, cores, Kokkos::num_threads());
  return session;
}

std::unique_ptr<KokkosSession> start_kokkos(Runtime& runtime, int threads, std::vector<std::string> flags,
                                            int workers) {
  return start_kokkos(runtime, threads, std::move(flags), workers,
                      [&](const char* name, const std::function<void()>& f) { runtime.phase(name, f); });
}

}  // namespace sestina
