// The benches of `sestina bench` on one rank: kernels by themselves, and updates of an optimizer. The bodies are typed;
// their arguments and results are not.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"
#include "core/optimizer/base/optimizer_control.hpp"

namespace sestina {

struct BenchRounds {
  int warmup = 0, steps = 1;
};

struct KernelTime {
  std::string name;
  double seconds = 0, flops = 0, bytes = 0;  // flops > 0: bound by products, else by memory
};
// Times each kernel of the model, at its own sizes, on buffers of its own.
std::vector<KernelTime> bench_kernels(const Options&, const BenchRounds&);

struct OptimizerTime {
  double update_s = 0;                        // median over passes, per update
  double refresh_s = 0;                       // part of it that refreshes take
  double products_s = 0, products_flops = 0;  // per update; refreshes are in neither
  std::size_t state_bytes = 0;
  int streams = 0;
};
// Times updates of these tensors with random gradients. open_tier gives the new optimizer what its state may lie in.
OptimizerTime bench_optimizer(const std::vector<TensorSpec>&, const Options&, const BenchRounds&,
                              const std::function<void(OptimizerControl&)>& open_tier);

}  // namespace sestina
