// Golden files of POET-X: the series, a layer with its merge, codes of 8 bits.
#include "regression/replay/poet_bench.hpp"

namespace sestina::replay {
namespace {

template <class Space>
Outcome replay_series(const Space& exec, const Hdf5Reader& file) {
  Bench<Space> bench(exec, file);
  const PoetOptions options = setting_of(file);
  const auto theta = bench.read("theta"), d_g = bench.read("d_G");
  const std::size_t b = options.block, n = theta.extent(0) * b;
  const typename Bench<Space>::Floats g("g", n, b), d_theta("d_theta", theta.extent(0), theta.extent(1));
  const Vector<const float, Space> packed(theta.data(), theta.size());
  cayley_neumann<Space, float>(bench.exec, bench.gemm, bench.workspace, options.fourth, packed, g);
  bench.check("G", g);
  cayley_neumann_backward<Space, float>(bench.exec, bench.gemm, bench.workspace, options.fourth, packed,
                                        Matrix<float, Space>(d_g.data(), n, b), false,
                                        Vector<float, Space>(d_theta.data(), d_theta.size()));
  bench.check("d_theta", d_theta);
  return bench.outcome;
}

template <class Space>
void check_base(Bench<Space>& bench, const PoetOptions& options, const Layer<Space>& layer, const std::string& at) {
  if (options.group == 0) return bench.check(at + "weight_held", layer.base);
  bench.check(at + "codes", layer.codes);
  bench.check(at + "scales", layer.scales);
  bench.check(at + "zeros", layer.zeros);
}

template <class Space>
Outcome replay_linear(const Space& exec, const Hdf5Reader& file) {
  Bench<Space> bench(exec, file);
  const PoetOptions options = setting_of(file);
  const auto first = bench.read("weight_0"), x = bench.read("x"), d_y = bench.read("d_y");
  const std::size_t out = first.extent(0), in = first.extent(1), n = x.extent(0), b = options.block;
  const Layer<Space> layer(options, out, in);
  bench.write("perm_in", 0, layer.perm_in);
  bench.write("perm_out", 0, layer.perm_out);
  poet_assign<Space, float>(bench.space, options, layer.weight, first);
  check_base(bench, options, layer, "");
  bench.write(file.numbers("theta_in"), 0, layer.rotation_in);
  bench.write(file.numbers("theta_out"), 0, layer.rotation_out);
  const typename Bench<Space>::Floats y("y", n, out), kept("kept", n, out), d_x("d_x", n, in), inner("inner", n, in);
  for (const bool keep : {true, false}) {  // both ways: the same numbers
    const Matrix<float, Space> c = keep ? Matrix<float, Space>(kept) : Matrix<float, Space>();
    poet_forward<Space, float>(bench.space, options, layer.weight, x, c, y);
    bench.check("y", y);
    poet_backward_input<Space, float>(bench.space, options, layer.weight, d_y, false, inner, d_x);
    bench.check("d_x", d_x);
    poet_backward_rotations<Space, float>(bench.space, options, layer.weight, d_y, x, c, inner, false,
                                          Layer<Space>::flat(layer.d_in), Layer<Space>::flat(layer.d_out));
    bench.check("d_theta_in", layer.d_in);
    bench.check("d_theta_out", layer.d_out);
  }
  const typename Bench<Space>::Floats g_in("g_in", in, b), g_out("g_out", out, b);
  cayley_neumann<Space, float>(bench.exec, bench.gemm, bench.workspace, options.fourth, layer.weight.rotation_in, g_in);
  cayley_neumann<Space, float>(bench.exec, bench.gemm, bench.workspace, options.fourth, layer.weight.rotation_out,
                               g_out);
  bench.check("G_in", g_in);
  bench.check("G_out", g_out);
  poet_effective<Space, float>(bench.space, options, layer.weight, layer.dense);
  bench.check("weight_effective", layer.dense);
  bench.write("merge/perm_in", 0, layer.perm_in);
  bench.write("merge/perm_out", 0, layer.perm_out);
  poet_assign<Space, float>(bench.space, options, layer.weight, layer.dense);
  check_base(bench, options, layer, "merge/");
  poet_forward<Space, float>(bench.space, options, layer.weight, x, {}, y);
  bench.check("merge/y", y);
  return bench.outcome;
}

template <class Space>
Outcome replay_int8(const Space& exec, const Hdf5Reader& file) {
  Bench<Space> bench(exec, file);
  const auto w = bench.read("weight");
  const auto group = static_cast<std::size_t>(file.attribute("hyper", "group_size"));
  const typename Bench<Space>::Bytes codes("codes", w.size()), zeros("zeros", group_count(w.size(), group));
  const typename Bench<Space>::Floats scales("scales", 1, zeros.size()), back("back", w.extent(0), w.extent(1));
  const GroupCodes<Space, float> coded{group, 8, codes, zeros, Vector<float, Space>(scales.data(), scales.size())};
  group_quantise<Space, float>(bench.exec, Vector<const float, Space>(w.data(), w.size()),
                               file.attribute("hyper", "include_zero") != 0, coded);
  group_dequantise<Space, float>(bench.exec, coded, Vector<float, Space>(back.data(), back.size()));
  bench.check("codes", codes);
  bench.check("scales", scales);
  bench.check("zeros", zeros);
  bench.check("dequantised", back);
  return bench.outcome;
}

}  // namespace

template <class Space>
Outcome replay_poet(const Space& exec, const Hdf5Reader& file) {
  const std::string kind = file.text("/", "kind");
  if (kind == "cayley-neumann") return replay_series(exec, file);
  if (kind == "poet-linear") return replay_linear(exec, file);
  if (kind == "poet-int8") return replay_int8(exec, file);
  return replay_poet_train(exec, file);
}

#define SESTINA_REPLAY_POET(Space) template Outcome replay_poet<Space>(const Space&, const Hdf5Reader&);
SESTINA_INSTANTIATE_LANES(SESTINA_REPLAY_POET)

}  // namespace sestina::replay
