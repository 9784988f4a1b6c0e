#include "regression/replay/replay.hpp"

#include <algorithm>
#include <cmath>

#include "core/optimizer/methods/adamw.hpp"

namespace sestina::replay {

void compare(const Hdf5Reader& file, const std::string& name, std::int64_t step, const std::vector<float>& got,
             double atol, double rtol, Outcome& outcome) {
  const std::vector<double> want = file.numbers(name);
  const std::size_t begin = step < 0 ? 0 : static_cast<std::size_t>(step) * got.size();
  if (begin + got.size() > want.size())
    fail(ExitCode::bad_data, "{} holds {} values, {} are needed", name, want.size(), begin + got.size());
  double largest = 1e-30;
  for (std::size_t i = 0; i < got.size(); ++i) largest = std::max(largest, std::abs(want[begin + i]));
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double expected = want[begin + i], difference = std::abs(static_cast<double>(got[i]) - expected);
    const double of_tolerance = difference == 0 ? 0 : difference / (atol + rtol * std::abs(expected));
    outcome.error = std::max(outcome.error, difference / largest);
    outcome.of_tolerance = std::max(outcome.of_tolerance, std::isfinite(of_tolerance) ? of_tolerance : INFINITY);
  }
}

template <class Exec>
Outcome replay_adamw(const Exec& exec, const Hdf5Reader& file) {
  const std::vector<std::int64_t> shape = file.shape("gradient");  // (T, m, n)
  const auto n = static_cast<std::size_t>(shape.at(1) * shape.at(2));
  const std::vector<double> first = file.numbers("weight_0"), gradients = file.numbers("gradient");
  using Storage = Kokkos::View<float*, typename Exec::memory_space>;
  const Storage weight("weight", n), gradient("gradient", n);
  const auto host_weight = Kokkos::create_mirror_view(weight), host_gradient = Kokkos::create_mirror_view(gradient);
  for (std::size_t i = 0; i < n; ++i) host_weight(i) = static_cast<float>(first[i]);
  Kokkos::deep_copy(exec, weight, host_weight);

  const auto hyper = [&](const char* name) { return file.attribute("hyper", name); };
  OptimizerOptions options;
  options.adamw = {hyper("lr"), hyper("beta1"), hyper("beta2"), hyper("eps"), hyper("weight_decay")};
  TensorSpec spec;
  spec.name = "matrix";
  spec.rows = shape[1];
  spec.cols = shape[2];
  AdamW<Exec, float> optimizer(exec, {{spec, gradient, weight, {}}}, options);

  Outcome outcome;
  std::vector<float> got(n);
  const double atol = file.attribute("/", "atol"), rtol = file.attribute("/", "rtol");
  for (std::int64_t t = 1; t <= shape[0]; ++t) {
    for (std::size_t i = 0; i < n; ++i)
      host_gradient(i) = static_cast<float>(gradients[static_cast<std::size_t>(t - 1) * n + i]);
    Kokkos::deep_copy(exec, gradient, host_gradient);
    optimizer.step(exec, t, 1.0, 1.0);
    Kokkos::deep_copy(exec, host_weight, weight);
    exec.fence();
    std::copy_n(host_weight.data(), n, got.data());
    compare(file, "weight", t - 1, got, atol, rtol, outcome);
  }
  for (const StateField& field : optimizer.state()) {
    const std::string name = "state" + field.path.substr(field.path.rfind('/'));
    Kokkos::deep_copy(exec, host_gradient, Vector<const float, Exec>(static_cast<const float*>(field.data), n));
    exec.fence();
    std::copy_n(host_gradient.data(), n, got.data());
    compare(file, name, -1, got, file.attribute(name, "atol"), file.attribute(name, "rtol"), outcome);
  }
  return outcome;
}

#define SESTINA_REPLAY(Exec) template Outcome replay_adamw<Exec>(const Exec&, const Hdf5Reader&);
SESTINA_INSTANTIATE_SPACES(SESTINA_REPLAY)

}  // namespace sestina::replay
