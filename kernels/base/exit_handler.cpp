#include "kernels/base/exit_handler.hpp"

#include <unistd.h>

#include <atomic>

namespace sestina {
namespace {

// A process ends once, and a signal's handler is given nothing but the signal: so a process has one such variable.
std::atomic<ExitHandler> handler = nullptr;
static_assert(std::atomic<ExitHandler>::is_always_lock_free, "a signal's handler reads it");

}  // namespace

ExitHandler set_exit_handler(ExitHandler next) { return handler.exchange(next); }

void leave_process(int code, ExitHandler otherwise) {
  if (const ExitHandler chosen = handler.load()) return chosen(code);
  if (otherwise != nullptr) return otherwise(code);
  _exit(code);
}

}  // namespace sestina
