#include "app/start/start_up.hpp"

#include <utility>

namespace sestina {
namespace {

struct StopRequested {};

}  // namespace

StartUp::StartUp(Runtime& runtime, Stop& stop, std::function<bool()> resumable)
    : runtime_(runtime), stop_(stop), resumable_(std::move(resumable)) {}

Poll StartUp::poll() const {
  return [this] {
    if (stop_.told_to_stop()) throw StopRequested();
  };
}

Poll StartUp::last_poll() const {
  return [this] {
    if (stop_.told_to_stop()) fail_stopped("weights");
  };
}

void StartUp::phase(const char* name, const std::function<void()>& f) {
  runtime_.phase(name, [&] {
    try {
      poll()();
      f();
      poll()();
    } catch (const StopRequested&) {
      fail_stopped(name);
    }
  });
}

void StartUp::fail_stopped(const char* where) const {
  const bool saved = resumable_();
  fail(saved ? ExitCode::stopped_saved : ExitCode::stopped_unsaved, "stopped by {} in start-up, phase \"{}\"{}",
       stop_.reason(), where, saved ? "; run again with -r auto to resume" : "; there is no checkpoint yet");
}

}  // namespace sestina
