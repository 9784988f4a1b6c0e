// Up to the direction the three are one: momentum and its norm in one pass, then Newton-Schulz; they differ in the last
// pass (muon_update.hpp).
#include "core/optimizer/methods/muon.hpp"

#include <algorithm>
#include <type_traits>

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/base/work.hpp"
#include "kernels/optimizer/muon_update.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {

void MuonMomentOptions::fields(OptionFields& f) {
  MuonOptions::fields(f);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  f.flag("keep_norm", keep_norm);
}

namespace {

enum class Variant { muon, normuon, adamuon };

template <Variant V>
using KeysOf = std::conditional_t<V == Variant::muon, MuonOptions, MuonMomentOptions>;

template <class Space, Variant V>
class Muon final : public MatrixOptimizer<Space> {
 public:
  Muon(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : rows_(shape.rows),
        cols_(shape.cols),
        rule_(muon_rule(options.as<KeysOf<V>>(), shape.rows, shape.cols)),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        momentum_(state_.vector("momentum")) {
    if constexpr (V != Variant::muon) {
      const auto& o = options.as<MuonMomentOptions>();
      second_moment_ = {o.beta2, o.eps, o.keep_norm};
    }
  }

  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    const SumScratch<Space> squares(workspace, rows * cols);
    if (options.as<KeysOf<V>>().ns_precision == MuonOptions::Precision::bf16)
      NewtonSchulzScratch<bf16, Space>(workspace, rows, cols);
    else  // at most
      NewtonSchulzScratch<float, Space>(workspace, rows, cols);
    if constexpr (V == Variant::normuon) declare<NorMuonScratch<Space>>(workspace, std::max(rows, cols));
    if constexpr (V == Variant::adamuon) declare<AdaMuonScratch<Space>>(workspace, rows);
  }

  void step(Stream<Space>& stream, const UpdateNumbers& numbers, const OwnedMatrix<Space>& matrix) override {
    using Precision = MuonOptions::Precision;
    const bool has_rounded = matrix.weight.size() != 0;
    if (rule_.precision == Precision::bf16 || (rule_.precision == Precision::automatic && has_rounded))
      step_as<bf16>(stream, numbers, matrix);
    else
      step_as<float>(stream, numbers, matrix);
  }

  MatrixState<Space>& state() override { return state_; }

 private:
  template <class T>
  void step_as(Stream<Space>& stream, const UpdateNumbers& numbers, const OwnedMatrix<Space>& matrix) {
    const auto frame = stream.workspace.frame();
    const std::size_t n = rows_ * cols_;
    const Vector<const float, Space> gradient(matrix.gradient.data(), n), momentum = momentum_;
    const Vector<double, Space> squares = SumScratch<Space>(stream.workspace, n).chunks;
    const double clip = numbers.gradient_scale;
    const float p = static_cast<float>(clip * rule_.p), q = static_cast<float>(rule_.q);
    advance_momentum(stream.exec, {static_cast<float>(rule_.keep), static_cast<float>(clip * rule_.gain), p, q},
                     gradient, momentum_, squares);
    const NewtonSchulz ns = {rule_.steps, rule_.ns_eps, rule_.norm};
    const Matrix<const T, Space> direction =
        newton_schulz<T>(stream.exec, stream.gemm, stream.workspace, ns, Blend<Space>{gradient, momentum, p, q}, rows_,
                         cols_, Vector<const double, Space>(squares));
    const WeightMove move = {numbers.lr, rule_.scale, numbers.weight_decay, true, stream.nonfinite};
    if constexpr (V == Variant::muon)
      move_weight_wide(stream.exec, move, direction, matrix.master, matrix.weight);
    else if constexpr (V == Variant::normuon)
      move_weight_normuon(stream.exec, move, second_moment_, direction, state_.vector("second_moment"), matrix.master,
                          matrix.weight, stream.workspace);
    else
      move_weight_adamuon(stream.exec, move, second_moment_, direction, state_.matrix("second_moment"), matrix.master,
                          matrix.weight, stream.workspace);
  }

  std::size_t rows_, cols_;
  MuonRule rule_;
  SecondMoment second_moment_;
  MatrixState<Space> state_;
  Vector<float, Space> momentum_;  // (m n)
};

template <Variant V>
MatrixKind muon_kind(const char* name) {
  MatrixKind kind = matrix_kind<KeysOf<V>>(name);
  kind.state = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) {
    std::vector<FieldSize> fields = {{"momentum", DType::f32, rows, cols}};
    // NorMuon: one mean square for each row of the direction where rows >= cols, else for each column.
    if (V == Variant::normuon) fields.push_back({"second_moment", DType::f32, std::max(rows, cols)});
    if (V == Variant::adamuon) fields.push_back({"second_moment", DType::f32, rows, cols});
    return fields;
  };
  kind.stated_flops = stated_products;
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return newton_schulz_work(options.as<KeysOf<V>>(), rows, cols);
  };
  kind.newton_schulz = [](const MatrixOptions& options) {
    const auto& o = options.as<KeysOf<V>>();
    return static_cast<std::int64_t>(newton_schulz_steps(o.ns_set, o.ns_steps).size());
  };
  kind.checks = {[](Deck& deck, Options& options) {
    const auto& o = options.optimizer.matrix->as<KeysOf<V>>();
    if (const auto only = only_newton_schulz_steps(o.ns_set); only && o.ns_steps != 0 && o.ns_steps != *only)
      deck.error("optimizer.ns_steps", fmt::format("not with ns_set \"{}\"", o.ns_set), fmt::format("0, {}", *only));
  }};
  if (V == Variant::muon) {
    kind.shard_work = [](const MatrixOptions& options, std::int64_t side, std::int64_t length, bool counted) {
      return newton_schulz_shard_work(options.as<MuonOptions>(), side, length, counted);
    };
    kind.keeps_skew = [](const MatrixOptions&) { return true; };
  }
  return kind;
}

template <class Space>
using PlainMuon = Muon<Space, Variant::muon>;
template <class Space>
using NorMuon = Muon<Space, Variant::normuon>;
template <class Space>
using AdaMuon = Muon<Space, Variant::adamuon>;

}  // namespace

void register_muon() { register_matrix_kind<PlainMuon>(muon_kind<Variant::muon>("muon")); }
void register_normuon() { register_matrix_kind<NorMuon>(muon_kind<Variant::normuon>("normuon")); }
void register_adamuon() { register_matrix_kind<AdaMuon>(muon_kind<Variant::adamuon>("adamuon")); }

}  // namespace sestina
