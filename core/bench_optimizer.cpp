#include "core/benches.hpp"
#include "core/dispatch.hpp"
#include "core/layout/arena.hpp"
#include "core/machine_speed.hpp"
#include "core/optimizer/optimizer.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

// Fills x with small numbers of both signs, the same in every run.
template <class Exec, class A>
void fill(const Exec& exec, Vector<A, Exec> x, double scale) {
  Kokkos::parallel_for(
      "bench_fill", Kokkos::RangePolicy<Exec>(exec, 0, x.size()), KOKKOS_LAMBDA(const std::size_t i) {
        const auto mixed = static_cast<std::uint32_t>(i * 2654435761u) ^ static_cast<std::uint32_t>(i >> 7);
        x(i) = static_cast<A>(scale * (static_cast<double>((mixed * 2246822519u) >> 8) / 8388608.0 - 1.0));
      });
}

template <class Exec, class T>
OptimizerTime time_optimizer(const Exec& exec, const std::vector<TensorSpec>& specs, const Options& options,
                             const BenchRounds& rounds, const std::function<void(OptimizerControl&)>& open_tier) {
  const Arena<Exec, T> arena(specs, true);
  fill<Exec, Acc<T>>(exec, arena.masters(), 0.02);
  fill<Exec, Acc<T>>(exec, arena.gradients(), 1e-3);
  std::vector<OwnedTensor<Exec, T>> tensors;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    tensors.push_back({specs[i], arena.gradient(i), arena.master(i), arena.compute(i)});
    tensors.back().coded = arena.owned_coded(i);
  }
  Optimizer<Exec, T> optimizer(exec, tensors, options.optimizer, options.run.deterministic,
                               matrix_index(specs, options.optimizer));
  open_tier(optimizer);

  // A pass is one period of refreshes, so that each pass has its share of them.
  const std::int64_t period = options.optimizer.matrix ? options.optimizer.matrix->refresh_every : 1;
  const std::int64_t passes = std::max<std::int64_t>(3, rounds.steps / period);
  std::int64_t t = 0;
  const auto pass = [&] {
    for (std::int64_t i = 0; i < period; ++i) optimizer.step(exec, ++t, 1.0, 1.0);
    exec.fence();
  };
  for (int i = 0; i < std::max(1, rounds.warmup); ++i) {  // the first update makes the first bases
    optimizer.step(exec, ++t, 1.0, 1.0);
    exec.fence();
  }
  std::vector<double> seconds, refreshes;
  optimizer.take_refresh_seconds();
  for (std::int64_t i = 0; i < passes; ++i) {
    const double start = now_seconds();
    pass();
    seconds.push_back((now_seconds() - start) / static_cast<double>(period));
    refreshes.push_back(optimizer.take_refresh_seconds().waits / static_cast<double>(period));
  }
  OptimizerTime bench{median(seconds), median(refreshes)};
  optimizer.time_products(true);
  pass();
  const auto products = optimizer.take_products();
  bench.products_s = products.seconds / static_cast<double>(period);
  bench.products_flops = products.flops / static_cast<double>(period);
  bench.state_bytes = optimizer.state_bytes();
  bench.streams = optimizer.streams();
  return bench;
}

}  // namespace

OptimizerTime bench_optimizer(const std::vector<TensorSpec>& specs, const Options& options, const BenchRounds& rounds,
                              const std::function<void(OptimizerControl&)>& open_tier) {
  return dispatch(options.run.space, options.train.precision, [&](const auto& exec, auto tag) {
    return time_optimizer<std::decay_t<decltype(exec)>, typename decltype(tag)::type>(exec, specs, options, rounds,
                                                                                      open_tier);
  });
}

}  // namespace sestina
