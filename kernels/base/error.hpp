// One error path for all rooms: every failure is an Error that carries an exit code and says
// what happened, where, what was got and what is allowed. app/program.cpp prints it once and exits. No Kokkos.
#pragma once
#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace sestina {

// Exit codes of the program (sysexits values where they exist); the same on every rank.
enum class ExitCode : int {
  done = 0,
  usage = 64,
  bad_data = 65,  // damaged or incompatible data or checkpoint
  input_missing = 66,
  unavailable = 69,  // device, MPI or library feature not there
  internal = 70,
  cannot_create = 73,
  io_error = 74,         // after retries
  stopped_saved = 75,    // stopped early with a complete checkpoint
  stopped_unsaved = 76,  // stopped early without one
  bad_deck = 78,
  diverged = 79,
  corrupted = 80,     // a calculation that does not come out the same again; nothing of it was saved
  interrupted = 130,  // second Ctrl-C
};

// The one exception type. `what()` is the finished message, ready to be printed once.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Throws an Error with a formatted message: fail(ExitCode::bad_data, "{}: {} tokens, need {}", path, got, need).
template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// The meaning of an exception for whoever runs the program: the exit code and message of the one error path.
struct Failure {
  ExitCode code = ExitCode::internal;
  std::string message;
};

// Returns an Error as it is. Memory or a thread that the system refuses is `unavailable`: a limit was met, the message
// names the limits of this process, nothing is wrong inside. Every other exception is internal.
Failure failure_of(const std::exception&) noexcept;

}  // namespace sestina

// Checks an invariant of the program itself (never user input); always on. Extra arguments are a format and its values.
#define SESTINA_REQUIRE(condition, ...)                                                                             \
  do {                                                                                                              \
    if (!(condition))                                                                                               \
      ::sestina::fail(::sestina::ExitCode::internal, "{}:{}: {} does not hold: {}", __FILE__, __LINE__, #condition, \
                      ::fmt::format(__VA_ARGS__));                                                                  \
  } while (false)
