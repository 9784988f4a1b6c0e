#include "app/experiments/program.hpp"

#include "app/experiments/diagnose.hpp"
#include "app/start/all_ranks.hpp"
#include "app/start/program_frame.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

int run_diagnose(int argc, char** argv) {
  return run_call_of("diagnose", {argc, argv, all_ranks()}, [](const Command& command) {
    const auto* arguments = std::get_if<HessianArguments>(&command);
    SESTINA_REQUIRE(arguments != nullptr, "no experiment");
    return run_diagnose_hessian(*arguments, all_ranks());
  });
}

}  // namespace sestina
