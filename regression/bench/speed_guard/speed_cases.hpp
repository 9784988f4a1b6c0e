// The work that speed_guard.py counts: parts of the program, small, each with all that it needs ready before it is
// counted.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace sestina {

struct SpeedCase {
  std::string name;
  int rounds = 1;                               // so many calls are counted
  std::function<std::function<void()>()> make;  // makes what a call works on, and returns the call
};

std::vector<SpeedCase> step_cases();
std::vector<SpeedCase> kernel_cases();

}  // namespace sestina
