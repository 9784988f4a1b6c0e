#include "parallel/stage/kernel_checks.hpp"

#include <fmt/format.h>

#include "core/check/checker.hpp"
#include "core/dispatch.hpp"
#include "core/stage_values.hpp"
#include "kernels/optimizer/eigen.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/tensor_group.hpp"

namespace sestina {
namespace {

constexpr std::size_t sent_cols = 1024, sent_rows = 256;  // the part of a rank

// Element i of rank r: so small that sums over ranks are exact.
double sent_number(std::size_t rank, std::size_t i) { return static_cast<double>((i * 7 + rank * 3) % 8) - 4; }

template <class Exec, class S>
void try_group(Checker<Exec>& checker, TensorGroup<Exec>& group, const std::string& type) {
  const std::size_t ranks = extent(group.size()), mine = extent(group.rank()), part = sent_rows * sent_cols;
  CheckField<Exec, S> own(sent_rows, sent_cols), all(ranks * sent_rows, sent_cols), sum(1, part);
  own.fill([&](std::size_t i) { return static_cast<float>(sent_number(mine, i)); });
  sum.fill([&](std::size_t i) { return static_cast<float>(sent_number(mine, i)); });
  all.fill(NoNumbers{});
  std::vector<double> gathered, summed(part, 0);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < part; ++i) {
      gathered.push_back(sent_number(r, i));
      summed[i] += sent_number(r, i);
    }
  const std::string shape = fmt::format("{} ranks, {} x {}", ranks, sent_rows, sent_cols);
  const double bytes = static_cast<double>((ranks - 1) * part) * sizeof(S);
  checker.check({"gather of ranks in " + type, shape, 0, bytes}, {expected("whole", all, 0, std::move(gathered))},
                [&] { group.gather(checker.exec(), own.matrix(), all.matrix()); });
  // Beyond 64 ranks a sum may not be a number of bf16.
  const double bound = ranks <= 64 ? 0 : spacing<S>;
  checker.check({"sum of ranks in " + type, shape, 0, bytes}, {expected("sum", sum, bound, std::move(summed))},
                [&] { group.sum(checker.exec(), sum.vector()); });
}

template <class Exec, class T>
std::vector<KernelCheck> try_exchanges(const Exec& exec, Communicator& world) {
  std::unique_ptr<Communicator> ranks = world.split(0, world.rank());
  if (!is_host<Exec>) ranks = on_device(std::move(ranks));
  Checker<Exec> checker(exec);
  TensorGroup<Exec> group(*ranks);
  try_group<Exec, float>(checker, group, "fp32");
  if constexpr (std::is_same_v<T, bf16>) try_group<Exec, bf16>(checker, group, "bf16");
  group.complete();
  return checker.take_results();
}

}  // namespace

std::vector<KernelCheck> check_kernels(const Options& options) {
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    return check_kernels<std::decay_t<decltype(exec)>, typename decltype(tag)::type>(exec, options,
                                                                                     pass_options(options).micro_batch);
  });
}

bool leave_decompositions_to_host() { return Solver<Device>::leave_to_host(); }

std::vector<KernelCheck> check_exchanges(const Options& options, Communicator& world) {
  if (world.size() == 1) return {};
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    return try_exchanges<std::decay_t<decltype(exec)>, typename decltype(tag)::type>(exec, world);
  });
}

}  // namespace sestina
