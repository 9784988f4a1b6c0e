// All checks of a deck, in their order, and what is said of those that do not hold.
#include <fmt/format.h>

#include "core/check/checker.hpp"

namespace sestina {
namespace {

// Most tokens of the shapes: two sequences of most decks, and a reference takes no longer than some seconds.
constexpr std::size_t most_checked_tokens = 2048;

}  // namespace

template <class Exec, class T>
std::vector<KernelCheck> check_kernels(const Exec& exec, const Options& options, int micro_batch) {
  Checker<Exec> checker(exec);
  const auto sequence = std::min<std::size_t>(extent(options.data.sequence_length), most_checked_tokens);
  const std::size_t batch = std::min(extent(micro_batch), most_checked_tokens / sequence);
  const CheckContext<Exec> context{checker, options, static_cast<int>(std::max<std::size_t>(batch, 1)),
                                   static_cast<int>(sequence)};
  check_copies<Exec, T>(context);
  check_products<Exec, T>(context);
  check_attention<Exec, T>(context);
  check_norms<Exec, T>(context);
  check_rows<Exec, T>(context);
  check_rotations<Exec, T>(context);
  check_updates<Exec, T>(context);
  check_batches<Exec, T>(context);
  check_solvers<Exec, T>(context);
  return checker.take_results();
}

#define SESTINA_CHECK_KERNELS(Exec, T) \
  template std::vector<KernelCheck> check_kernels<Exec, T>(const Exec&, const Options&, int);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CHECK_KERNELS)

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
