// The three methods are equal up to the direction: momentum and its norm in one pass, then Newton-Schulz; they differ
// in the last pass (kernels/optimizer/matrix_update.hpp).
#include "core/optimizer/methods/muon.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "kernels/base/error.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {

namespace {

enum class Beyond { cycle, repeat_last, none };  // what follows the last entry

struct Set {
  std::string_view name;
  std::int64_t usual;  // number of steps
  Beyond beyond;
  std::vector<NewtonSchulzStep> entries;
};

// These are tuned for the steepest slope at 0; singular values end in [.68, 1.14] (K. Jordan et al., Muon, 2024).
constexpr NewtonSchulzStep simple = {3.4445, -4.7750, 2.0315};

// `aol`, which other programs list among these, is left out on purpose: it was made for another normalisation. After a
// Frobenius norm its first polynomial is negative above .884, so a matrix with one dominant direction comes out with
// that direction reversed.
const std::vector<Set>& sets() {
  static const std::vector<Set> all = {
      {"simple", 5, Beyond::cycle, {simple}},
      {"quintic",
       5,
       Beyond::cycle,
       {{4.0848, -6.8946, 2.9270},
        {3.9505, -6.3029, 2.6377},
        {3.7418, -5.5913, 2.3037},
        {2.8769, -3.1427, 1.2046},
        {2.8366, -3.0525, 1.2012}}},
      // Polar Express (Amsel et al., arXiv 2505.16932): each entry is the best one for the result of the last; divided
      // by a safety factor of 1.01,
      {"polar_express",
       8,
       Beyond::repeat_last,
       {{8.2051, -22.9019, 16.4607},
        {4.0664, -2.8612, 0.5184},
        {3.9096, -2.8234, 0.5250},
        {3.2856, -2.4153, 0.4853},
        {2.2779, -1.6198, 0.3985},
        {1.8726, -1.2307, 0.3585},
        {1.8564, -1.2132, 0.3568},
        {1.875, -1.25, 0.375}}},
      // or of 1.02, for five steps.
      {"polar_express_dion",
       5,
       Beyond::repeat_last,
       {{8.156554524902461, -22.48329292557795, 15.878769915207462},
        {4.042929935166739, -2.808917465908714, 0.5000178451051316},
        {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
        {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
        {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}},
      // Chebyshev-accelerated (CANS, Grishina et al., arXiv 2506.10935).
      {"cans",
       5,
       Beyond::repeat_last,
       {{8.4703, -25.1081, 18.6293},
        {4.1828, -3.1087, 0.5806},
        {3.9619, -2.9541, 0.5630},
        {3.2866, -2.4647, 0.5074},
        {2.2737, -1.6447, 0.4162}}},
      {"deepseekv4",
       10,
       Beyond::repeat_last,
       {simple, simple, simple, simple, simple, simple, simple, simple, {2, -1.5, 0.5}, {2, -1.5, 0.5}}},
      {"cubic5",
       5,
       Beyond::none,
       {{3.3656576, -3.3420992, 0},
        {2.5744352, -1.4957376, 0},
        {2.5368962, -1.4312570, 0},
        {2.4418906, -1.2764040, 0},
        {2.2230472, -0.9630650, 0}}},
      {"qwen_express",
       8,
       Beyond::repeat_last,
       {{8.3865, -24.3696, 17.7251},
        {4.1414, -3.0173, 0.5524},
        {3.9226, -2.8672, 0.5357},
        {3.2540, -2.3922, 0.4827},
        {2.2512, -1.5963, 0.3960},
        {1.87, -1.2279, 0.3582},
        {1.8564, -1.2132, 0.3568},
        {1.875, -1.25, 0.375}}},
  };
  return all;
}

const Set& find(std::string_view name) {
  for (const Set& set : sets())
    if (set.name == name) return set;
  fail(ExitCode::internal, "no Newton-Schulz set \"{}\"", name);
}

}  // namespace

const std::vector<std::string>& newton_schulz_set_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Set& set : sets()) list.emplace_back(set.name);
    return list;
  }();
  return names;
}

std::optional<std::int64_t> only_newton_schulz_steps(std::string_view name) {
  const Set& set = find(name);
  if (set.beyond != Beyond::none) return std::nullopt;
  return static_cast<std::int64_t>(set.entries.size());
}

std::vector<NewtonSchulzStep> newton_schulz_steps(std::string_view name, std::int64_t steps) {
  const Set& set = find(name);
  const std::size_t count = static_cast<std::size_t>(steps == 0 ? set.usual : steps), entries = set.entries.size();
  if (const auto only = only_newton_schulz_steps(name); only && static_cast<std::int64_t>(count) != *only)
    fail(ExitCode::bad_deck, "optimizer.ns_steps: ns_set \"{}\" has {} steps, got {}", name, *only, steps);
  std::vector<NewtonSchulzStep> result;
  for (std::size_t i = 0; i < count; ++i)
    result.push_back(set.entries[set.beyond == Beyond::repeat_last ? std::min(i, entries - 1) : i % entries]);
  return result;
}

namespace {

double shape_scale(MuonOptions::Scale scale, double m, double n) {
  using Scale = MuonOptions::Scale;
  if (scale == Scale::match_rms_adamw) return 0.2 * std::sqrt(std::max(m, n));
  if (scale == Scale::spectral) return std::sqrt(std::max(m, n));
  if (scale == Scale::unit_rms_norm) return std::sqrt(m / n);
  return std::sqrt(std::max(1.0, m / n));
}

}  // namespace

void MuonOptions::fields(OptionFields& f) {
  f.number("momentum", momentum, below_one);
  f.choice("momentum_form", momentum_form, {"ema", "sum"});
  f.flag("nesterov", nesterov);
  f.word("ns_set", ns_set, newton_schulz_set_names());
  f.integer("ns_steps", ns_steps, {.min = 0, .max = 100});
  f.choice("ns_precision", ns_precision, {"auto", "fp32", "bf16"});
  f.eps("ns_eps", ns_eps);
  f.choice("ns_normalize", ns_normalize, {"max", "add"});
  f.choice("scale", scale, {"match_rms_adamw", "original", "shape_scaling", "spectral", "unit_rms_norm"});
  f.number("extra_scale", extra_scale);
  f.only("decay_order", "before");
}

UpdateWork newton_schulz_work(const MuonOptions& o, std::int64_t rows, std::int64_t cols) {
  return newton_schulz_shard_work(o, std::min(rows, cols), std::max(rows, cols), true);
}

UpdateWork newton_schulz_shard_work(const MuonOptions& o, std::int64_t side, std::int64_t length, bool counted) {
  const auto s = static_cast<double>(side), l = static_cast<double>(length);
  UpdateWork work;
  for (const NewtonSchulzStep& step : newton_schulz_steps(o.ns_set, o.ns_steps))
    work.update += (counted ? 3 : 2) * l * s * s + (step.c != 0 ? s * s * s : 0);  // a cubic step squares nothing
  return work;
}

MuonRule muon_rule(const MuonOptions& o, std::size_t rows, std::size_t cols) {
  const double mu = o.momentum;
  MuonRule rule;
  rule.keep = mu;
  rule.gain = o.momentum_form == MuonOptions::Form::ema ? 1 - mu : 1;
  rule.p = o.nesterov ? rule.gain : 0;
  rule.q = o.nesterov ? mu : 1;
  rule.steps = newton_schulz_steps(o.ns_set, o.ns_steps);
  rule.ns_eps = o.ns_eps;
  rule.norm = o.ns_normalize;
  rule.precision = o.ns_precision;
  rule.scale = o.extra_scale * shape_scale(o.scale, static_cast<double>(rows), static_cast<double>(cols));
  return rule;
}

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
    else  // its largest need
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
