#include "core/check/kernel_check.hpp"

#include <fmt/format.h>

namespace sestina {

std::vector<std::string> wrong_kernels(const std::vector<KernelCheck>& checks) {
  std::vector<std::string> lines;
  for (const KernelCheck& check : checks) {
    if (check.error > check.bound)
      lines.push_back(fmt::format("{} ({}): {} differs from its plain reference by {:.2g}, allowed {:.2g}",
                                  check.kernel, check.shape, check.output, check.error, check.bound));
    if (!check.repeats)
      lines.push_back(fmt::format("{} ({}): two calls with the same input gave other bits", check.kernel, check.shape));
  }
  return lines;
}

}  // namespace sestina
