// POET-X as a form of weights: it turns parts and deck options into calls of poet_x.hpp.
#include <fmt/format.h>

#include "core/layout/poet_x_form.hpp"
#include "core/model/linear_form.hpp"
#include "core/model/poet_x.hpp"
#include "kernels/base/random.hpp"

namespace sestina {
namespace {

// A side in parts of equal size, each permuted in itself; the first one here is number `first` of all.
struct Shards {
  std::int64_t count = 1, first = 0;
};

// Draws a permutation from (seed, weight and side, number of merges, shard), the same on every rank; waits for the
// space. The first shard, or the only one, has the stream of a side that is not cut.
template <class Exec>
void draw(const Exec& exec, std::uint64_t seed, const std::string& side, std::int64_t number, const Shards& shards,
          const Vector<std::int32_t, Exec>& index) {
  const std::size_t all = index.extent(0), n = all / static_cast<std::size_t>(shards.count);
  const Kokkos::View<std::int32_t*, Kokkos::HostSpace> host("sestina::permutation", all);
  for (std::int64_t k = 0; k < shards.count; ++k) {
    const std::int64_t shard = shards.first + k;
    const std::string name = fmt::format("{}/{}", side, number);
    const std::uint64_t stream = stream_of(seed, shard == 0 ? name : fmt::format("{}/{}", name, shard));
    const std::size_t begin = static_cast<std::size_t>(k) * n;
    for (std::size_t i = 0; i < n; ++i) host(begin + i) = static_cast<std::int32_t>(begin + permute(stream, i, n));
  }
  Kokkos::deep_copy(exec, index, Vector<const std::int32_t, Host>(host.data(), all));
  exec.fence("permutation");
}

template <class Exec, class T>
class PoetLinear final : public LinearForm<Exec, T> {
 public:
  using A = Acc<T>;

  void forward(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> x, Matrix<T, Exec> kept,
               Matrix<T, Exec> y) const override {
    poet_forward<Exec, T>(space(c), setting(c), weight(c, w), x, kept, y);
  }
  void backward_input(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> dy, bool add,
                      Matrix<T, Exec> passed, Matrix<T, Exec> dx) const override {
    poet_backward_input<Exec, T>(space(c), setting(c), weight(c, w), dy, add, passed, dx);
  }
  void backward_weight(Context<Exec>& c, const FormedWeight& w, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                       Matrix<const T, Exec> kept, Matrix<const T, Exec> passed, bool accumulate,
                       const FormedWeight& gradient) const override {
    const PoetWeight<Exec, T> views = weight(c, w);
    if (gradient.sums != nullptr)
      return poet_backward_blocks<Exec, T>(space(c), setting(c), views, dy, x, kept, passed, accumulate,
                                           blocks(setting(c), views, gradient));
    poet_backward_rotations<Exec, T>(space(c), setting(c), views, dy, x, kept, passed, accumulate,
                                     rotation(gradient, poet_rotation_in, views.rotation_in.extent(0)),
                                     rotation(gradient, poet_rotation_out, views.rotation_out.extent(0)));
  }
  void finish_gradient(Context<Exec>& c, const FormedWeight& w, const FormedWeight& gradient) const override {
    const PoetWeight<Exec, T> views = weight(c, w);
    poet_rotations_from_blocks<Exec, T>(space(c), setting(c), views, blocks(setting(c), views, gradient),
                                        rotation(gradient, poet_rotation_in, views.rotation_in.extent(0)),
                                        rotation(gradient, poet_rotation_out, views.rotation_out.extent(0)));
  }
  void assign(Context<Exec>& c, const FormedWeight& w, std::uint64_t seed, Matrix<const A, Exec> dense) const override {
    const PoetWeight<Exec, T> views = weight(c, w);
    c.exec.fence("permutation");  // `dense` may depend on the permutations that are drawn again
    draw_both(c, w, views, seed, 0);
    poet_assign<Exec, T>(space(c), setting(c), views, dense);
  }
  void effective(Context<Exec>& c, const FormedWeight& w, Matrix<A, Exec> dense) const override {
    poet_effective<Exec, T>(space(c), setting(c), weight(c, w), dense);
  }
  void merge(Context<Exec>& c, const FormedWeight& w, std::uint64_t seed, std::int64_t number) const override {
    const PoetWeight<Exec, T> views = weight(c, w);
    poet_merge<Exec, T>(space(c), setting(c), views, [&] { draw_both(c, w, views, seed, number); });
  }
  RotationMeasure measure(Context<Exec>& c, const FormedWeight& w, Workspace<Exec>& workspace,
                          Solver<Exec>& solver) const override {
    return poet_measure<Exec, T>({c.exec, c.gemm, workspace}, solver, setting(c),
                                 sharded_sides(c.config().linear, w.cut), weight(c, w));
  }
  double largest_rotation(Context<Exec>& c, const FormedWeight& w, Workspace<Exec>& workspace) const override {
    return poet_largest_rotation<Exec, T>({c.exec, c.gemm, workspace}, setting(c), weight(c, w));
  }
  void declare_measure(Workspace<Exec>& workspace, const LinearOptions& here, const FormShape& shape, TensorCut cut,
                       RotationLook look) const override {
    declare_poet_measure<Exec>(workspace, here, shape, cut, look);
  }

 private:
  static ProductSpace<Exec> space(Context<Exec>& c) { return {c.exec, c.gemm, c.workspace}; }
  static PoetOptions setting(const Context<Exec>& c) { return poet_options(c.config().linear); }
  static Vector<A, Exec> rotation(const FormedWeight& w, PoetPart part, std::size_t n) {
    return Vector<A, Exec>(static_cast<A*>(w.part[part]), n);
  }
  static Vector<std::uint8_t, Exec> bytes_of(const FormedWeight& w, PoetPart part, std::size_t n) {
    return Vector<std::uint8_t, Exec>(static_cast<std::uint8_t*>(w.part[part]), n);
  }
  static PoetBlocks<Exec, A> blocks(const PoetOptions& s, const PoetWeight<Exec, T>& views,
                                    const FormedWeight& gradient) {
    const std::size_t out = s.turned_by(views.rotation_out.extent(0)), in = s.turned_by(views.rotation_in.extent(0));
    return {Matrix<A, Exec>(static_cast<A*>(gradient.sums), in + out, s.block), in};
  }
  static PoetWeight<Exec, T> weight(const Context<Exec>& c, const FormedWeight& w) {
    const PoetOptions s = setting(c);
    const auto out = static_cast<std::size_t>(w.rows), in = static_cast<std::size_t>(w.cols);
    const LinearOptions& options = c.config().linear;
    const ShardedSides sides = sharded_sides(options, w.cut);
    const auto packed = [&](std::int64_t n, std::int64_t parts) {
      return static_cast<std::size_t>(turned_of(options, n, parts)) * (s.block - 1) / 2;
    };
    PoetWeight<Exec, T> views;
    if (s.group == 0) {
      views.base.values = Matrix<T, Exec>(static_cast<T*>(w.part[poet_base]), out, in);
      if (s.residual && w.part[poet_residual] != nullptr)
        views.base.residuals = Matrix<std::uint8_t, Exec>(bytes_of(w, poet_residual, out * in).data(), out, in);
    } else {
      const std::size_t n = out * in, groups = group_count(n, s.group);
      views.base.coded = {s.group, s.bits, bytes_of(w, poet_base, code_bytes(n, s.bits)),
                          bytes_of(w, poet_zeros, groups),
                          Vector<A, Exec>(static_cast<A*>(w.part[poet_scales]), groups)};
      if (s.residual && w.part[poet_code_residual] != nullptr)
        views.base.coded.residuals = bytes_of(w, poet_code_residual, n);
    }
    views.perm_in = Vector<std::int32_t, Exec>(static_cast<std::int32_t*>(w.part[poet_perm_in]), in);
    views.perm_out = Vector<std::int32_t, Exec>(static_cast<std::int32_t*>(w.part[poet_perm_out]), out);
    views.rotation_in = rotation(w, poet_rotation_in, packed(w.cols, sides.in));
    views.rotation_out = rotation(w, poet_rotation_out, packed(w.rows, sides.out));
    return views;
  }
  static void draw_both(Context<Exec>& c, const FormedWeight& w, const PoetWeight<Exec, T>& views, std::uint64_t seed,
                        std::int64_t number) {
    const LinearOptions& options = c.config().linear;
    const ShardedSides sides = sharded_sides(options, w.cut);
    const bool inputs = w.cut == TensorCut::cols;
    draw(c.exec, seed, w.name + "/in", number, {sides.in, inputs ? options.first_shard : 0}, views.perm_in);
    draw(c.exec, seed, w.name + "/out", number, {sides.out, inputs ? 0 : options.first_shard}, views.perm_out);
  }
};

}  // namespace

template <class Exec, class T>
const LinearForm<Exec, T>& poet_x_linear() {
  static const PoetLinear<Exec, T> form;
  return form;
}

#define SESTINA_POET_LINEAR(Exec, T) template const LinearForm<Exec, T>& poet_x_linear<Exec, T>();
SESTINA_INSTANTIATE(SESTINA_POET_LINEAR)

}  // namespace sestina
