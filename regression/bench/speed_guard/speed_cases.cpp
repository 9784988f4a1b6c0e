// Runs a case of the speed guard, under valgrind as speed_guard.py starts it:
//   speed_cases --list          prints the names of the cases
//   speed_cases --build         prints the compiler and how this was compiled, as two lines
//   speed_cases [--more] NAME   runs a case; with --more one round more, to see that the guard notices
#include "regression/bench/speed_guard/speed_cases.hpp"

#include <Kokkos_Core.hpp>
#include <cstdio>
#include <string_view>

#include "core/optimizer/register_optimizers.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

// What valgrind counts, by its name. Not inlined, or the count would be zero.
[[gnu::noinline]] void counted_rounds(const std::function<void()>& call, int rounds) {
  for (int i = 0; i < rounds; ++i) call();
}

namespace {

std::vector<SpeedCase> all_speed_cases() {
  std::vector<SpeedCase> cases = step_cases();
  for (SpeedCase& one : kernel_cases()) cases.push_back(std::move(one));
  return cases;
}

void run_speed_case(std::string_view name, bool more) {
  for (const SpeedCase& one : all_speed_cases()) {
    if (one.name != name) continue;
    const std::function<void()> call = one.make();
    call();  // products are prepared when their shape is first seen
    counted_rounds(call, one.rounds + (more ? 1 : 0));
    return;
  }
  fail(ExitCode::usage, "speed_cases: \"{}\": no such case; --list prints them", name);
}

int run(std::vector<std::string_view> arguments) {
  if (!arguments.empty() && arguments[0] == "--build") {
    std::printf("%s\n%s\n", SPEED_COMPILER, SPEED_BUILD);
    return 0;
  }
  if (!arguments.empty() && arguments[0] == "--list") {
    for (const SpeedCase& one : all_speed_cases()) std::printf("%s\n", one.name.c_str());
    return 0;
  }
  const bool more = !arguments.empty() && arguments[0] == "--more";
  if (more) arguments.erase(arguments.begin());
  if (arguments.size() != 1)
    fail(ExitCode::usage, "speed_cases: got {} names of cases, allowed: one", arguments.size());
  const Kokkos::ScopeGuard kokkos;
  register_optimizers();
  run_speed_case(arguments[0], more);
  return 0;
}

}  // namespace
}  // namespace sestina

int main(int argc, char** argv) {
  try {
    return sestina::run({argv + 1, argv + argc});
  } catch (const sestina::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
