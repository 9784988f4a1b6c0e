#include "core/optimizer/methods/sharded_muon.hpp"

#include <algorithm>

#include "core/optimizer/base/stream_scratch.hpp"

namespace sestina {

namespace {

template <class Exec, class T>
std::vector<GroupedShard<Exec, T>> in_one_group(const std::vector<OwnedTensor<Exec, T>>& tensors,
                                                GroupOps<Exec>& group) {
  std::vector<GroupedShard<Exec, T>> shards;
  for (const OwnedTensor<Exec, T>& tensor : tensors)
    if (tensor.sharded) shards.push_back({tensor, &group});
  return shards;
}

template <class Exec>
ShardSums<Exec> sums_over(const Exec& exec, GroupOps<Exec>& group, bool shares_squares) {
  ShardSums<Exec> sums = {[exec, &group](Vector<double, Exec> x) { group.sum(exec, x); },
                          [exec, &group](Vector<float, Exec> x) { group.sum(exec, x); }};
  if (!shares_squares) return sums;
  sums.squarer = static_cast<std::size_t>(group.rank());
  sums.squarers = static_cast<std::size_t>(group.size());
  const auto gather = [exec, &group](const auto& whole) {  // the own rows lie where they belong
    using Part = std::remove_cvref_t<decltype(whole)>;
    const auto rows = static_cast<std::int64_t>(whole.extent(0));
    const std::int64_t begin = first_row_of(rows, group.size(), group.rank()),
                       end = first_row_of(rows, group.size(), group.rank() + 1);
    group.gather(exec,
                 Part(whole.data() + static_cast<std::size_t>(begin) * whole.extent(1),
                      static_cast<std::size_t>(end - begin), whole.extent(1)),
                 whole);
  };
  sums.rows_float = gather;
  sums.rows_bf16 = gather;
  return sums;
}

}  // namespace

template <class Exec, class T>
ShardedMuon<Exec, T>::ShardedMuon(const Exec& exec, const std::vector<OwnedTensor<Exec, T>>& tensors,
                                  const OptimizerOptions& options, bool deterministic, GroupOps<Exec>& group,
                                  double* nonfinite)
    : ShardedMuon(exec, in_one_group(tensors, group), options, deterministic, nonfinite) {}

template <class Exec, class T>
ShardedMuon<Exec, T>::ShardedMuon(const Exec& exec, std::vector<GroupedShard<Exec, T>> shards,
                                  const OptimizerOptions& options, bool deterministic, double* nonfinite)
    : kind_(options.kind), gemm_(exec, deterministic), schedule_(options.schedule), nonfinite_(nonfinite) {
  if (!shards.empty() && options.matrix) {
    variant_ = muon_variant(*options.matrix);
    if (variant_ != MuonVariant::muon) {
      const auto& keys = options.matrix->as<MuonMomentOptions>();
      second_moment_ = {keys.beta2, keys.eps, keys.keep_norm};
    }
  }
  for (const GroupedShard<Exec, T>& given : shards) {
    const OwnedTensor<Exec, T>& tensor = given.tensor;
    const MatrixKind* kind = options.matrix ? find_matrix_kind(options.matrix->kind) : nullptr;
    SESTINA_REQUIRE(kind != nullptr && kind->shard_work, "{} is updated by {}", tensor.spec.name, options.kind);
    Shard shard;
    shard.tensor = tensor;
    shard.rule = muon_rule(muon_options(*options.matrix), static_cast<std::size_t>(tensor.spec.rows),
                           static_cast<std::size_t>(tensor.spec.cols));
    shard.rates = rates_of(tensor.spec, options);
    shard.cut = tensor.cols() == tensor.spec.cols ? CutSide::rows : CutSide::cols;
    shard.sums = sums_over(exec, *given.group, given.shares_squares);
    shard.first = given.group->rank() == 0;
    TensorSpec held = tensor.spec;
    held.rows = tensor.rows();
    held.cols = tensor.cols();
    shard.moments = static_cast<std::size_t>(shard_moments(*options.matrix, tensor.spec, held));
    shard.sums_moments = shard_sums(*options.matrix, tensor.spec, held) > 0;
    shards_.push_back(std::move(shard));
  }
  take_state();
  workspace_ = Workspace<Exec>(scratch());
}

template <class Exec, class T>
void ShardedMuon<Exec, T>::take_state() {
  std::size_t elements = 0;
  for (const Shard& shard : shards_) elements += aligned_elements(shard.elements()) + aligned_elements(shard.moments);
  state_ = decltype(state_)("sestina::momentum", elements);
  float* next = state_.data();
  const auto take = [&next](std::size_t n) {
    const Vector<float, Exec> taken(next, n);
    next += aligned_elements(n);
    return taken;
  };
  for (Shard& shard : shards_) {
    shard.momentum = take(shard.elements());
    shard.second_moment = take(shard.moments);
  }
}

template <class Exec, class T>
bool ShardedMuon<Exec, T>::Shard::in_bf16() const {
  return rule.in_bf16(std::is_same_v<T, bf16>);
}

// The numbers by which the scratch of a shard (m, n) is made.
struct ShardShape {
  std::size_t m = 0, n = 0;
  CutSide cut = CutSide::rows;
  MuonVariant variant = MuonVariant::muon;
  bool tall = false, in_bf16 = false;
};

template <class Space>
static void declare_shard(Workspace<Space>& workspace, const ShardShape& shape) {
  const auto frame = workspace.frame();
  const SumScratch<Space> squares(workspace, shape.m * shape.n);
  if (shape.in_bf16)
    NewtonSchulzShardScratch<bf16, Space>(workspace, shape.m, shape.n, shape.cut);
  else
    NewtonSchulzShardScratch<float, Space>(workspace, shape.m, shape.n, shape.cut);
  if (shape.variant == MuonVariant::normuon) declare<NorMuonScratch<Space>>(workspace, shape.tall ? shape.m : shape.n);
  if (shape.variant == MuonVariant::adamuon) declare<AdaMuonScratch<Space>>(workspace, shape.m);
}

template <class Exec, class T>
std::size_t ShardedMuon<Exec, T>::scratch() const {
  return bytes_taken<Exec>([this](Workspace<Exec>& counter) {
    for (const Shard& shard : shards_)
      declare_shard<Exec>(counter,
                          {static_cast<std::size_t>(shard.tensor.rows()), static_cast<std::size_t>(shard.tensor.cols()),
                           shard.cut, variant_, shard.tall(), shard.in_bf16()});
  });
}

std::size_t host_shard_scratch(const MatrixOptions& options, const TensorSpec& whole, const TensorSpec& shard,
                               bool computes_bf16) {
  const auto m = static_cast<std::size_t>(shard.rows), n = static_cast<std::size_t>(shard.cols);
  const bool in_bf16 = muon_rule(muon_options(options), m, n).in_bf16(computes_bf16);
  const CutSide cut = shard.cols == whole.cols ? CutSide::rows : CutSide::cols;
  return bytes_taken<Host>([&](Workspace<Host>& counter) {
    declare_shard<Host>(counter, {m, n, cut, muon_variant(options), whole.rows >= whole.cols, in_bf16});
  });
}

std::int64_t shard_moments(const MatrixOptions& options, const TensorSpec& whole, const TensorSpec& shard) {
  const MuonVariant variant = muon_variant(options);
  if (variant == MuonVariant::muon) return 0;
  if (variant == MuonVariant::adamuon) return shard.elements();
  return whole.rows >= whole.cols ? shard.rows : shard.cols;
}

std::int64_t shard_sums(const MatrixOptions& options, const TensorSpec& whole, const TensorSpec& shard) {
  const MuonVariant variant = muon_variant(options);
  if (variant == MuonVariant::muon) return 0;
  const bool cut_rows = shard.cols == whole.cols, tall = whole.rows >= whole.cols;
  if (variant == MuonVariant::normuon && cut_rows != tall) return std::max(whole.rows, whole.cols);
  return options.as<MuonMomentOptions>().keep_norm ? 2 : 0;
}

template <class Exec, class T>
void ShardedMuon<Exec, T>::step(const Exec& exec, std::int64_t t, double factor, double gradient_scale,
                                std::size_t begin, std::size_t end) {
  const std::optional<double> momentum = schedule_.momentum_at(t);
  for (std::size_t i = begin; i < end; ++i) {
    Shard& shard = shards_[i];
    const double decay = shard.rates.weight_decay * schedule_.decay_factor(t, factor);
    const WeightMove move = {factor * shard.rates.lr, shard.rule.scale, decay, true, nonfinite_};
    const MomentumStep now = momentum_step(shard.rule.factors(momentum), gradient_scale);
    if (shard.in_bf16())
      step_as<bf16>(exec, shard, move, now);
    else
      step_as<float>(exec, shard, move, now);
    ++shard.calls;
  }
}

template <class Exec, class T>
template <class P>
void ShardedMuon<Exec, T>::step_as(const Exec& exec, Shard& shard, const WeightMove& move, const MomentumStep& now) {
  const auto frame = workspace_.frame();
  const OwnedTensor<Exec, T>& tensor = shard.tensor;
  const MuonRule& rule = shard.rule;
  const auto m = static_cast<std::size_t>(tensor.rows()), n = static_cast<std::size_t>(tensor.cols());
  const Vector<double, Exec> squares = SumScratch<Exec>(workspace_, m * n).chunks;
  advance_momentum<Exec>(exec, now, tensor.gradient, shard.momentum, squares);
  const Matrix<const P, Exec> direction = newton_schulz_shard<P, Exec>(
      exec, gemm_, workspace_, rule.newton_schulz(), {tensor.gradient, shard.momentum, now.p, now.q}, m, n, shard.cut,
      squares, tensor.counted, shard.sums);
  move_shard<P>(exec, shard, move, direction);
}

template <class Exec, class T>
template <class P>
void ShardedMuon<Exec, T>::move_shard(const Exec& exec, Shard& shard, const WeightMove& move,
                                      Matrix<const P, Exec> direction) {
  const OwnedTensor<Exec, T>& tensor = shard.tensor;
  const std::size_t m = direction.extent(0), n = direction.extent(1);
  Vector<bf16, Exec> weight;
  if constexpr (std::is_same_v<T, bf16>) weight = tensor.weight;
  if (variant_ == MuonVariant::muon) {
    move_weight<Exec, P>(exec, move, Vector<const P, Exec>(direction.data(), m * n), tensor.master, weight);
    return;
  }
  MovedMatrix<Exec> to;
  to.master = Matrix<float, Exec>(tensor.master.data(), m, n);
  if (weight.size() != 0) to.weight = Matrix<bf16, Exec>(weight.data(), m, n);
  to.rows = static_cast<std::size_t>(tensor.spec.rows);
  to.cols = static_cast<std::size_t>(tensor.spec.cols);
  to.counted = tensor.counted;
  to.sum = &shard.sums.norm;
  if (variant_ == MuonVariant::normuon)
    move_weight_normuon<Exec, P>(exec, move, second_moment_, direction, shard.second_moment, to, workspace_);
  else
    move_weight_adamuon<Exec, P>(exec, move, second_moment_, direction,
                                 Matrix<float, Exec>(shard.second_moment.data(), m, n), to, workspace_);
}

template <class Exec, class T>
std::vector<StateField> ShardedMuon<Exec, T>::state() const {
  std::vector<StateField> fields;
  for (const Shard& shard : shards_) {
    fields.push_back(
        field_of(shard.tensor, "/optimizer/" + shard.tensor.spec.name + "/momentum", shard.momentum.data()));
    if (variant_ != MuonVariant::muon) fields.push_back(moment_field(shard));
  }
  return fields;
}

// Means of NorMuon are a vector: those of the own lines, or all of them, which the first rank saves.
template <class Exec, class T>
StateField ShardedMuon<Exec, T>::moment_field(const Shard& shard) const {
  const OwnedTensor<Exec, T>& tensor = shard.tensor;
  StateField field = field_of(tensor, "/optimizer/" + tensor.spec.name + "/second_moment", shard.second_moment.data());
  if (variant_ == MuonVariant::adamuon) return field;
  const bool by_row = shard.tall(), cuts_lines = by_row != (shard.cut == CutSide::rows);
  field.shape = {by_row ? tensor.spec.rows : tensor.spec.cols};
  if (cuts_lines) {
    field.row_begin = 0;
    field.row_end = field.shape[0];
    field.saved = tensor.saved && shard.first;
  } else if (!by_row) {
    field.row_begin = tensor.col_begin;
    field.row_end = tensor.col_end;
  }
  field.col_begin = field.col_end = 0;
  return field;
}

template <class Exec, class T>
std::vector<UpdateRecord> ShardedMuon<Exec, T>::records() const {
  std::vector<UpdateRecord> records;
  for (const Shard& shard : shards_)
    records.push_back(
        {shard.tensor.spec.name, kind_, static_cast<std::int64_t>(shard.elements()), shard.calls, shard.tensor.saved});
  return records;
}

template <class Exec, class T>
std::size_t ShardedMuon<Exec, T>::state_bytes() const {
  std::size_t sum = 0;
  for (const StateField& field : state()) sum += field.bytes();
  return sum;
}

template <class Exec, class T>
std::int64_t ShardedMuon<Exec, T>::sums_per_step() const {
  std::int64_t sums = 0;
  for (const Shard& shard : shards_)
    sums += 1 + static_cast<std::int64_t>(shard.rule.steps.size()) + (shard.sums_moments ? 1 : 0);
  return sums;
}

#define SESTINA_SHARDED_MUON(Exec, T) template class ShardedMuon<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_SHARDED_MUON)

}  // namespace sestina
