#include "app/rank_run.hpp"

#include <cstdio>

namespace sestina {
namespace {

void end_all(Runtime& runtime, ExitCode code, const char* message) {
  std::fflush(stdout);
  std::fprintf(stderr, "sestina: error: rank %d: %s\n", runtime.rank(), message);
  runtime.abort(code);
}

// The first rank speaks before any ends: a launcher that sees one rank end with an error ends the others at once.
void report_first(Runtime& runtime, const AgreedError& error) {
  if (runtime.is_first()) {
    std::fflush(stdout);
    std::fprintf(stderr, "sestina: error: %s\n", error.what());
  }
  try {
    runtime.world().barrier();
  } catch (const Error&) {  // a rank was lost meanwhile: what is to be said has been said
  }
}

}  // namespace

void require_one_task(const char* verb) {
  const Launch launch = find_launch();
  if (launch.tasks > 1)
    fail(ExitCode::unavailable, "{} runs as one process, but {} tasks were started ({} is set); train takes several",
         verb, launch.tasks, launch.variable);
}

int run_on_ranks(Runtime& runtime, const std::function<int()>& verb) {
  if (runtime.size() == 1) return verb();
  try {
    return verb();
  } catch (const AgreedError& error) {
    report_first(runtime, error);
    return static_cast<int>(error.code());
  } catch (const Error& error) {
    end_all(runtime, error.code(), error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    end_all(runtime, ExitCode::internal, "out of memory");
  } catch (const std::exception& error) {
    end_all(runtime, ExitCode::internal, error.what());
  }
  return static_cast<int>(ExitCode::internal);
}

}  // namespace sestina
