// Golden files of Newton-Schulz iteration: one input, one output, the coefficients of every step written out.
#include "kernels/optimizer/newton_schulz.hpp"
#include "regression/replay/replay.hpp"

namespace sestina::replay {

template <class Space>
Outcome replay_orthogonalize(const Space& exec, const Hdf5Reader& file) {
  const std::vector<std::int64_t> shape = file.shape("input");
  const auto m = static_cast<std::size_t>(shape.at(0)), n = static_cast<std::size_t>(shape.at(1));
  const std::vector<double> input = file.numbers("input"), table = file.attributes("hyper", "ns_coefficients");
  std::vector<NewtonSchulzStep> steps;
  for (std::size_t i = 0; i + 2 < table.size(); i += 3) steps.push_back({table[i], table[i + 1], table[i + 2]});
  const bool added = file.text("hyper", "ns_normalize") == "divide by norm + eps";
  const NewtonSchulz ns{steps, file.attribute("hyper", "ns_eps"),
                        added ? NewtonSchulzNorm::add : NewtonSchulzNorm::max};

  using Storage = Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space>;
  const Storage in("input", m, n), out("output", m, n);
  const auto host = Kokkos::create_mirror_view(in);
  for (std::size_t i = 0; i < input.size(); ++i) host.data()[i] = static_cast<float>(input[i]);
  Kokkos::deep_copy(exec, in, host);
  Gemm<Space> gemm(exec);
  Workspace<Space> workspace(bytes_taken<Space>([&](auto& counter) { declare_orthogonalize<Space>(counter, m, n); }));
  orthogonalize<Space>(exec, gemm, workspace, ns, file.text("/", "precision") == "bf16",
                       Matrix<const float, Space>(in.data(), m, n), Matrix<float, Space>(out.data(), m, n));
  Kokkos::deep_copy(exec, host, out);
  exec.fence();
  Outcome outcome;
  compare(file, "output", -1, {host.data(), host.data() + m * n}, file.attribute("/", "atol"),
          file.attribute("/", "rtol"), outcome);
  return outcome;
}

#define SESTINA_REPLAY_ORTHOGONALIZE(Space) \
  template Outcome replay_orthogonalize<Space>(const Space&, const Hdf5Reader&);
SESTINA_INSTANTIATE_LANES(SESTINA_REPLAY_ORTHOGONALIZE)

}  // namespace sestina::replay
