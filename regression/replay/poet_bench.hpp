// What the two halves of the POET-X replay share: settings from a file, memory of a space and its way to the file, and
// a layer with memory of its own.
#pragma once
#include <algorithm>
#include <cmath>

#include "core/model/poet_x.hpp"
#include "kernels/model/block_rotations.hpp"
#include "kernels/model/quantise.hpp"
#include "regression/replay/replay.hpp"

namespace sestina::replay {

inline std::size_t size_at(const std::vector<std::int64_t>& shape, std::size_t i) {
  return static_cast<std::size_t>(shape.at(i));
}

inline PoetOptions setting_of(const Hdf5Reader& file) {
  PoetOptions options;
  options.block = static_cast<std::size_t>(file.attribute("hyper", "block_size"));
  options.fourth = file.text("hyper", "cnp") == "even" ? 2 : 1;
  if (file.has("hyper", "group_size")) {
    options.group = static_cast<std::size_t>(file.attribute("hyper", "group_size"));
    options.zero_in_range = file.attribute("hyper", "include_zero") != 0;
  }
  return options;
}

// Memory of the space, and its way to the file.
template <class Space>
class Bench {
 public:
  using Floats = Kokkos::View<float**, Kokkos::LayoutRight, typename Space::memory_space>;
  using Bytes = Kokkos::View<std::uint8_t*, typename Space::memory_space>;
  using Index = Kokkos::View<std::int32_t*, typename Space::memory_space>;

  Bench(const Space& exec, const Hdf5Reader& file)
      : exec(exec), file(file), gemm(exec), workspace(std::size_t{1} << 24), space{this->exec, gemm, workspace} {}

  void write(const std::vector<double>& values, std::size_t begin, const Floats& to) const {
    const auto host = Kokkos::create_mirror_view(to);
    for (std::size_t i = 0; i < to.size(); ++i) host.data()[i] = static_cast<float>(values.at(begin + i));
    Kokkos::deep_copy(exec, to, host);
    exec.fence();
  }
  // (rows, cols) from a dataset, from its number `step` on.
  Floats read(const std::string& name, std::size_t rows, std::size_t cols, std::size_t step = 0) const {
    const Floats to("field", rows, cols);
    write(file.numbers(name), step * to.size(), to);
    return to;
  }
  Floats read(const std::string& name) const {
    const std::vector<std::int64_t> shape = file.shape(name);
    return read(name, size_at(shape, 0), file.numbers(name).size() / size_at(shape, 0));
  }
  void write(const std::string& name, std::size_t step, const Index& to) const {
    const std::vector<std::int32_t> values = file.integers(name);
    const auto host = Kokkos::create_mirror_view(to);
    for (std::size_t i = 0; i < to.size(); ++i) host(i) = values.at(step * to.size() + i);
    Kokkos::deep_copy(exec, to, host);
    exec.fence();
  }
  template <class View>
  void check(const std::string& name, const View& view, std::int64_t step = -1) {
    exec.fence();
    const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), view);
    const std::vector<float> got(host.data(), host.data() + host.size());
    compare(file, name, step, got, file.attribute(name, "atol"), file.attribute(name, "rtol"), outcome);
  }
  void check(const std::string& name, std::int64_t step, double got) {
    const double want = file.numbers(name).at(static_cast<std::size_t>(step)), difference = std::abs(got - want),
                 atol = file.attribute(name, "atol"), rtol = file.attribute(name, "rtol");
    outcome.of_tolerance = std::max(outcome.of_tolerance, difference / (atol + rtol * std::abs(want) + 1e-300));
  }

  Space exec;
  const Hdf5Reader& file;
  Gemm<Space> gemm;
  Workspace<Space> workspace;
  ProductSpace<Space> space;
  Outcome outcome;
};

// A layer with memory of its own.
template <class Space>
struct Layer {
  typename Bench<Space>::Floats base, scales, rotation_in, rotation_out, d_in, d_out, dense;
  typename Bench<Space>::Bytes codes, zeros;
  typename Bench<Space>::Index perm_in, perm_out;
  PoetWeight<Space, float> weight;

  Layer(const PoetOptions& s, std::size_t out, std::size_t in)
      : rotation_in("in", 1, in / s.block * skew_elements(s.block)),
        rotation_out("out", 1, out / s.block * skew_elements(s.block)),
        d_in("d_in", 1, rotation_in.size()),
        d_out("d_out", 1, rotation_out.size()),
        dense("dense", out, in),
        perm_in("perm_in", in),
        perm_out("perm_out", out) {
    if (s.group == 0) {
      base = decltype(base)("base", out, in);
    } else {
      codes = decltype(codes)("codes", out * in);
      zeros = decltype(zeros)("zeros", group_count(out * in, s.group));
      scales = decltype(scales)("scales", 1, zeros.size());
    }
    weight = {{Matrix<float, Space>(base.data(), base.extent(0), base.extent(1)),
               {},
               {s.group, s.bits, codes, zeros, Vector<float, Space>(scales.data(), scales.size())}},
              perm_in,
              perm_out,
              flat(rotation_in),
              flat(rotation_out)};
  }
  static Vector<float, Space> flat(const typename Bench<Space>::Floats& view) {
    return Vector<float, Space>(view.data(), view.size());
  }
};

// Replays a file of kind = "poet-train".
template <class Space>
Outcome replay_poet_train(const Space&, const Hdf5Reader&);

}  // namespace sestina::replay
