#include "app/start/program_frame.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/optimizer/register_optimizers.hpp"
#include "kernels/base/device_memory.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

int report_failure(const char* message, ExitCode code) {
  std::fflush(stdout);
  std::fprintf(stderr, "sestina: error: %s\n", message);
  return static_cast<int>(code);
}

std::filesystem::path own_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) fail(ExitCode::unavailable, "/proc/self/exe: cannot be read: {}", error.message());
  return path;
}

}  // namespace

int run_call(const Call& call, const RunCommand& run) {
  try {
    register_optimizers();
    // 1. The command line; -h and -V are answered without starting anything.
    const Command command = parse_command_line(call.argc, call.argv);
    prepare_device_libraries();
    // 2. The verb: reads its deck, starts Kokkos if it computes, runs.
    const auto* text = std::get_if<ShowText>(&command);
    const int code = text != nullptr ? std::fputs(text->text.c_str(), stdout) < 0 : run(command);
    // 3. The exit code, once all output is out.
    if (std::fflush(stdout) != 0) return report_failure("standard output cannot be written", ExitCode::io_error);
    return code;
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    return report_failure(failure.message.c_str(), failure.code);
  }
}

int run_call_of(const char* verb, const Call& call, const RunCommand& run) {
  std::vector<char*> words(call.argv, call.argv + call.argc);
  const std::string_view first = call.argc > 1 ? call.argv[1] : "";
  std::string word = verb;
  if (first != "-V" && first != "--version") words.insert(words.begin() + std::min(call.argc, 1), word.data());
  return run_call({static_cast<int>(words.size()), words.data(), call.ranks}, run);
}

void become_program_of(const char* verb, const Call& call) {
  const std::filesystem::path own = own_path();
  std::string path = fmt::format("{}-{}", own.string(), verb);
  if (!call.ranks.every_task || ranks::running())
    fail(ExitCode::unavailable,
         "{} is a program of its own, {}, and cannot take the place of one that has started MPI: call its function "
         "instead (run_bench, run_diagnose)",
         verb, path);
  std::vector<char*> words(call.argv, call.argv + call.argc);
  // Flags of Kokkos may stand before the verb.
  const auto at =
      std::find_if(words.begin(), words.end(), [&](const char* word) { return std::strcmp(word, verb) == 0; });
  SESTINA_REQUIRE(at != words.end(), "no word {}", verb);
  words.erase(at);
  words.front() = path.data();
  words.push_back(nullptr);
  ::execv(path.c_str(), words.data());
  const int reason = errno;
  fail(ExitCode::unavailable, "{}: cannot be started: {}; `{} {}` is this program, which belongs next to {}", path,
       std::strerror(reason), own.filename().string(), verb, own.string());
}

}  // namespace sestina
