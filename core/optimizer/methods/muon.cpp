// The three methods are equal up to the direction: momentum and its norm in one pass, then Newton-Schulz; they differ
// in the last pass (kernels/optimizer/matrix_update.hpp).
#include "core/optimizer/methods/muon.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "core/optimizer/base/register_kind.hpp"
#include "core/optimizer/base/sides.hpp"
#include "core/optimizer/methods/batched_matrix.hpp"
#include "kernels/base/error.hpp"
#include "kernels/optimizer/matrix_update.hpp"
#include "kernels/optimizer/muon/moment_batch.hpp"
#include "kernels/optimizer/newton_schulz.hpp"

namespace sestina {

namespace {

constexpr std::size_t most_steps = 100;

double shape_scale(MuonOptions::Scale scale, double m, double n) {
  using Scale = MuonOptions::Scale;
  if (scale == Scale::match_rms_adamw) return 0.2 * std::sqrt(std::max(m, n));
  if (scale == Scale::spectral) return std::sqrt(std::max(m, n));
  if (scale == Scale::unit_rms_norm) return std::sqrt(m / n);
  return std::sqrt(std::max(1.0, m / n));
}

}  // namespace

double width_power(MuonOptions::Scale scale) {
  using Scale = MuonOptions::Scale;
  return scale == Scale::match_rms_adamw || scale == Scale::spectral ? 0.5 : 0;
}

void MuonOptions::fields(OptionFields& f) {
  f.number("momentum", momentum, below_one);
  f.choice("momentum_form", momentum_form, {"ema", "sum"});
  f.flag("nesterov", nesterov);
  f.word("ns_set", ns_set, newton_schulz_set_names());
  f.integer("ns_steps", ns_steps, {.min = 0, .max = most_steps});
  f.triples("ns_coefficients", ns_coefficients);
  f.choice("ns_precision", ns_precision, ns_precisions);
  f.eps("ns_eps", ns_eps);
  f.choice("ns_normalize", ns_normalize, {"max", "add"});
  f.choice("ns_form", ns_form, {"auto", "plain", "gram"});
  f.choice("ns_norm", ns_norm, {"frobenius", "gram"});
  f.flag("row_equilibration", row_equilibration);
  f.flag("norm_snap", norm_snap);
  f.choice("scale", scale, {"match_rms_adamw", "original", "shape_scaling", "spectral", "unit_rms_norm"});
  f.number("extra_scale", extra_scale);
  f.only("decay_order", "before");
}

std::vector<NewtonSchulzStep> newton_schulz_steps(const MuonOptions& o) {
  if (o.ns_coefficients.empty()) return newton_schulz_steps(o.ns_set, o.ns_steps);
  std::vector<NewtonSchulzStep> steps;
  for (const auto& [a, b, c] : o.ns_coefficients) steps.push_back({a, b, c});
  return steps;
}

namespace {

// Shards of a matrix exchange norms and a Gram matrix for each step, and nothing else.
void check_sharded(Deck& deck, const MuonOptions& o) {
  const std::pair<const char*, bool> keys[] = {{"ns_form", o.ns_form == NewtonSchulzForm::gram},
                                               {"ns_norm", o.ns_norm == MuonOptions::Norm::gram},
                                               {"row_equilibration", o.row_equilibration},
                                               {"norm_snap", o.norm_snap}};
  for (const auto& [key, on] : keys)
    if (on)
      deck.error(
          fmt::format("optimizer.{}", key),
          "needs the whole matrix, and parallel.tp_update = \"distributed\" or parallel.partition = \"groups\" has "
          "shards of it",
          "its default, or another parallel.tp_update and parallel.partition");
}

}  // namespace

void check_newton_schulz(Deck& deck, const Options& options, MuonOptions& o) {
  const MatrixKind* kind = find_matrix_kind(options.optimizer.kind);
  const bool has_shards = kind != nullptr && kind->shard_work != nullptr;
  using Precision = MuonOptions::Precision;
  const bool computes_bf16 = options.train.precision == TrainOptions::Precision::bf16;
  const bool in_bf16 = o.ns_precision == Precision::bf16 || (o.ns_precision == Precision::automatic && computes_bf16);
  if (in_bf16 && o.ns_form == NewtonSchulzForm::automatic) o.ns_form = NewtonSchulzForm::plain;
  const ParallelOptions& parallel = options.parallel;
  const bool grouped = parallel.dp * parallel.tp > 1 && parallel.partition == ParallelOptions::Partition::groups,
             distributed = parallel.tp > 1 && parallel.tp_update == ParallelOptions::TpUpdate::distributed;
  if (has_shards && (grouped || distributed)) check_sharded(deck, o);
  const std::size_t rows = o.ns_coefficients.size();
  if (rows > most_steps)
    deck.error("optimizer.ns_coefficients", fmt::format("{} rows", rows), fmt::format("1 to {} rows", most_steps));
  if (rows > 0 && o.ns_set != newton_schulz_set_names().front())
    deck.error("optimizer.ns_coefficients", fmt::format("in the place of a set: not with ns_set \"{}\"", o.ns_set),
               "one of the two keys");
  if (rows > 0) {
    if (o.ns_steps != 0 && static_cast<std::size_t>(o.ns_steps) != rows)
      deck.error("optimizer.ns_steps", fmt::format("not with the {} rows of ns_coefficients", rows),
                 fmt::format("0, {}", rows));
  } else if (const auto only = only_newton_schulz_steps(o.ns_set); only && o.ns_steps != 0 && o.ns_steps != *only) {
    deck.error("optimizer.ns_steps", fmt::format("not with ns_set \"{}\"", o.ns_set), fmt::format("0, {}", *only));
  }
}

UpdateWork newton_schulz_work(const MuonOptions& o, std::int64_t rows, std::int64_t cols) {
  const auto s = static_cast<std::size_t>(std::min(rows, cols)), l = static_cast<std::size_t>(std::max(rows, cols));
  const MuonRule rule = muon_rule(o, s, l);
  UpdateWork work;
  work.update = newton_schulz_flops(rule.steps, takes_gram_form(rule.newton_schulz(), s, l), static_cast<double>(s),
                                    static_cast<double>(l));
  return work;
}

UpdateWork newton_schulz_shard_work(const MuonOptions& o, std::int64_t side, std::int64_t length, bool counted) {
  const auto s = static_cast<double>(side), l = static_cast<double>(length);
  UpdateWork work;
  for (const NewtonSchulzStep& step : newton_schulz_steps(o))
    work.update += (counted ? 3 : 2) * l * s * s + (step.c != 0 ? s * s * s : 0);  // a cubic step squares nothing
  return work;
}

MuonRule muon_rule(const MuonOptions& o, std::size_t rows, std::size_t cols) {
  MuonRule rule;
  rule.momentum = o.momentum;
  rule.form = o.momentum_form;
  rule.nesterov = o.nesterov;
  rule.steps = newton_schulz_steps(o);
  rule.numbers = {
      {}, o.ns_eps, o.ns_normalize, o.ns_form, o.ns_norm == MuonOptions::Norm::gram, o.row_equilibration, o.norm_snap};
  rule.precision = o.ns_precision;
  rule.scale = o.extra_scale * shape_scale(o.scale, static_cast<double>(rows), static_cast<double>(cols));
  return rule;
}

MomentumRule MuonRule::factors(std::optional<double> scheduled) const {
  const double mu = scheduled.value_or(momentum);
  const double gain = form == MuonOptions::Form::ema ? 1 - mu : 1;
  return {mu, gain, nesterov ? gain : 0, nesterov ? mu : 1};
}

void MuonMomentOptions::fields(OptionFields& f) {
  MuonOptions::fields(f);
  f.number("beta2", beta2, below_one);
  f.eps("eps", eps);
  f.flag("keep_norm", keep_norm);
}

MuonVariant muon_variant(const MatrixOptions& options) {
  if (options.kind == "normuon") return MuonVariant::normuon;
  if (options.kind == "adamuon") return MuonVariant::adamuon;
  SESTINA_REQUIRE(options.kind == "muon", "optimizer \"{}\" is no Muon", options.kind);
  return MuonVariant::muon;
}

const MuonOptions& muon_options(const MatrixOptions& options) {
  if (muon_variant(options) == MuonVariant::muon) return options.as<MuonOptions>();
  return options.as<MuonMomentOptions>();
}

namespace {

using Variant = MuonVariant;

template <Variant V>
using KeysOf = std::conditional_t<V == Variant::muon, MuonOptions, MuonMomentOptions>;

template <Variant V>
SecondMoment second_moment_of(const MatrixOptions& options) {
  if constexpr (V == Variant::muon)
    return {};
  else {
    const auto& o = options.as<MuonMomentOptions>();
    return {o.beta2, o.eps, o.keep_norm};
  }
}

// The last pass of each method.
template <Variant V, class T, class Space>
void move_along(Stream<Space>& stream, const WeightMove& move, [[maybe_unused]] const SecondMoment& rule,
                [[maybe_unused]] MatrixState<Space>& state, const OwnedMatrix<Space>& matrix,
                Matrix<const T, Space> direction) {
  [[maybe_unused]] const MovedMatrix<Space> to{matrix.master, matrix.weight, matrix.rows(), matrix.cols()};
  if constexpr (V == Variant::muon)
    move_weight_wide(stream.exec, move, direction, matrix.master, matrix.weight);
  else if constexpr (V == Variant::normuon)
    move_weight_normuon(stream.exec, move, rule, direction, state.vector("second_moment"), to, stream.workspace);
  else
    move_weight_adamuon(stream.exec, move, rule, direction, state.matrix("second_moment"), to, stream.workspace);
}

// Takes of a workspace what the last pass takes of it, and gives it back.
template <Variant V, class Space>
void declare_move([[maybe_unused]] Workspace<Space>& workspace, [[maybe_unused]] std::size_t rows,
                  [[maybe_unused]] std::size_t cols) {
  if constexpr (V == Variant::normuon) declare<NorMuonScratch<Space>>(workspace, std::max(rows, cols));
  if constexpr (V == Variant::adamuon) declare<AdaMuonScratch<Space>>(workspace, rows);
}

template <Variant V>
constexpr MomentOf moment_of = V == Variant::normuon ? MomentOf::line : MomentOf::element;

template <class Space, Variant V>
class MuonUpdates final : public UpdateBatch<Space> {
 public:
  MuonUpdates(const MatrixOptions& options, const std::vector<BatchItem<Space>>& items)
      : rule_(muon_rule(options.as<KeysOf<V>>(), items.front().matrix.rows(), items.front().matrix.cols())),
        in_bf16_(rule_.in_bf16(items.front().matrix.computes_bf16())),
        second_moment_(second_moment_of<V>(options)) {
    std::vector<BatchedMatrix> matrices;
    for (const BatchItem<Space>& item : items) {
      const double scale = muon_rule(options.as<KeysOf<V>>(), item.matrix.rows(), item.matrix.cols()).scale;
      BatchedMatrix one = batched_matrix(item, item.optimizer->state().vector("momentum").data(), scale);
      if constexpr (V == Variant::normuon) one.second_moment = item.optimizer->state().vector("second_moment").data();
      if constexpr (V == Variant::adamuon) one.second_moment = item.optimizer->state().matrix("second_moment").data();
      matrices.push_back(one);
    }
    batch_ = make_muon_batch<Space>(std::move(matrices), V == Variant::normuon);
  }

  static bool declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, bool computes_bf16,
                              std::size_t rows, std::size_t cols) {
    const MuonRule rule = muon_rule(options.as<KeysOf<V>>(), rows, cols);
    if (!is_batched(rule.newton_schulz(), rows, cols)) return false;
    const auto frame = workspace.frame();
    const BatchSizes one = BatchSizes::of_one(rows, cols);
    if (rule.in_bf16(computes_bf16))
      MuonBatchScratch<bf16, Space>(workspace, rule.newton_schulz(), one);
    else
      MuonBatchScratch<float, Space>(workspace, rule.newton_schulz(), one);
    if constexpr (V != Variant::muon) MomentBatchScratch<Space>(workspace, moment_of<V>, one);
    return true;
  }

  void step(Stream<Space>& stream, const UpdateNumbers& numbers) override {
    if (in_bf16_)
      step_as<bf16>(stream, numbers);
    else
      step_as<float>(stream, numbers);
  }

 private:
  template <class T>
  void step_as(Stream<Space>& stream, const UpdateNumbers& numbers) {
    const auto frame = stream.workspace.frame();
    const NewtonSchulz ns = rule_.newton_schulz();
    const MuonBatchScratch<T, Space> scratch(stream.workspace, ns, batch_.sizes);
    const MomentumStep now = momentum_step(rule_.factors(numbers.momentum), numbers.gradient_scale);
    advance_momenta<Space>(stream.exec, now, batch_, scratch.squares);
    const Vector<const T, Space> directions =
        batched_newton_schulz<T>(stream.exec, stream.gemm, ns, now, batch_, scratch);
    const WeightMove move = {numbers.lr, 1, numbers.weight_decay, true, stream.nonfinite};
    if constexpr (V == Variant::muon) {
      move_batch<T>(stream.exec, move, batch_, directions);
    } else {
      const MomentBatchScratch<Space> sums(stream.workspace, moment_of<V>, batch_.sizes);
      if constexpr (V == Variant::normuon)
        move_batch_normuon<T>(stream.exec, move, second_moment_, batch_, directions, sums);
      else
        move_batch_adamuon<T>(stream.exec, move, second_moment_, batch_, directions, sums);
    }
  }

  MuonRule rule_;
  bool in_bf16_;
  SecondMoment second_moment_;
  MuonBatch<Space> batch_;
};

template <class Space, Variant V>
class Muon final : public MatrixOptimizer<Space> {
 public:
  using Batch = MuonUpdates<Space, V>;

  Muon(const Space& exec, const MatrixOptions& options, const MatrixShape& shape)
      : rows_(shape.rows),
        cols_(shape.cols),
        rule_(muon_rule(options.as<KeysOf<V>>(), shape.rows, shape.cols)),
        second_moment_(second_moment_of<V>(options)),
        state_(exec, fields_of(options, shape.rows, shape.cols), shape.path),
        momentum_(state_.vector("momentum")) {}

  static void declare_scratch(Workspace<Space>& workspace, const MatrixOptions& options, std::size_t rows,
                              std::size_t cols) {
    const SumScratch<Space> squares(workspace, rows * cols);
    const auto& o = options.as<KeysOf<V>>();
    take_newton_schulz(workspace, muon_rule(o, rows, cols).newton_schulz(),
                       o.ns_precision == MuonOptions::Precision::bf16, rows, cols);
    declare_move<V>(workspace, rows, cols);
  }

  void step(Stream<Space>& stream, const UpdateNumbers& numbers, const OwnedMatrix<Space>& matrix) override {
    if (rule_.in_bf16(matrix.computes_bf16()))
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
    const MomentumStep now = momentum_step(rule_.factors(numbers.momentum), numbers.gradient_scale);
    advance_momentum(stream.exec, now, gradient, momentum_, squares);
    const Matrix<const T, Space> direction = newton_schulz<T>(
        stream.exec, stream.gemm, stream.workspace, rule_.newton_schulz(),
        Blend<Space>{gradient, momentum, now.p, now.q}, rows_, cols_, Vector<const double, Space>(squares));
    const WeightMove move = {numbers.lr, rule_.scale, numbers.weight_decay, true, stream.nonfinite};
    move_along<V, T>(stream, move, second_moment_, state_, matrix, direction);
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
  kind.shard_work = [](const MatrixOptions& options, std::int64_t side, std::int64_t length, bool counted) {
    return newton_schulz_shard_work(options.as<KeysOf<V>>(), side, length, counted);
  };
  kind.stated_flops = stated_products;
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    return newton_schulz_work(options.as<KeysOf<V>>(), rows, cols);
  };
  kind.newton_schulz = [](const MatrixOptions& options) {
    return static_cast<std::int64_t>(newton_schulz_steps(options.as<KeysOf<V>>()).size());
  };
  kind.width_power = [](const MatrixOptions& options) {
    const auto& o = options.as<KeysOf<V>>();
    if constexpr (V == Variant::muon)
      return std::optional(width_power(o.scale));
    else  // without its norm the direction has an RMS of 1
      return std::optional(width_power(o.scale) + (o.keep_norm ? 0 : 0.5));
  };
  kind.checks = {[](Deck& deck, Options& options) {
    check_newton_schulz(deck, options, std::any_cast<KeysOf<V>&>(options.optimizer.matrix->keys));
  }};
  if (V == Variant::muon)  // rows that are scaled alone are not skew
    kind.keeps_skew = [](const MatrixOptions& options) { return !options.as<MuonOptions>().row_equilibration; };
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
