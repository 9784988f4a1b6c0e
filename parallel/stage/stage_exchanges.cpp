#include "parallel/stage/stage_exchanges.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/threads.hpp"
#include "parallel/comm/nodes.hpp"
#include "parallel/exchange/tensor_sums.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
std::vector<PartialGradient<Exec>> partial_gradients(const StagePlan& plan, const GradientBuckets& buckets,
                                                     const PlanInput& input, const Arena<Exec, T>& arena,
                                                     StageGroups<Exec>& groups) {
  std::vector<PartialGradient<Exec>> partial;
  for (const PartialRun& run : partial_runs(plan, buckets, input))
    partial.push_back(
        {run.block, Vector<float, Exec>(arena.gradients().data() + run.begin, static_cast<std::size_t>(run.elements)),
         run.same_heads ? &groups.replicas : &groups.tensor});
  return partial;
}

// Returns the sums of what this rank owns of experts, or of all else, where gradients take turns; else null.
template <class Exec, class T>
std::unique_ptr<OwnedSums<Exec>> owned_sums(const GradientBuckets& all, bool experts, int dp_rank,
                                            const Stage<Exec, T>& stage) {
  const GradientBuckets own = buckets_of(all, experts);
  if (!own.in_turn()) return nullptr;
  const std::int64_t before = experts ? buckets_of(all, false).sums_size(dp_rank) : 0,
                     size = own.sums_size(experts ? dp_rank / all.ep : dp_rank);
  const PassOptions& options = stage.options();
  const Vector<float, Exec> sums(stage.arena().gradients().data() + own.begin.back() + before,
                                 static_cast<std::size_t>(size));
  return std::make_unique<OwnedSums<Exec>>(sums, options.micros, options.deterministic);
}

// Adds the measure of another share of the same tensor, or takes the first.
void add_measure(UpdateMeasure& sum, const UpdateMeasure& other) {
  const bool first = std::isnan(sum.moved);
  sum.moved = first ? other.moved : sum.moved + other.moved;
  sum.weight = first ? other.weight : sum.weight + other.weight;
  sum.defect += other.defect;
  sum.sides += other.sides;
  sum.decay = other.decay;
}

OwnerGroup holders_of_experts(const ParallelOptions& parallel, int dp_rank) {
  return {true, expert_rank(parallel, dp_rank), parallel.ep};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

template <class Exec, class T>
StageExchanges<Exec, T>::StageExchanges(const Exec& exec, const PlanInput& input, const StagePlan& plan,
                                        StageGroups<Exec>& groups, Stage<Exec, T>& stage, Trace* trace)
    : exec_(exec),
      groups_(groups),
      stage_(stage),
      trace_(trace),
      buckets_(gradient_buckets(plan, input.parallel)),
      homes_(exec, *groups.ranks.grid.tp_group, plan, input, stage.arena(), groups.ranks.grid.dp_rank),
      reduce_(exec, *groups.ranks.grid.dp_group, buckets_of(buckets_, false), stage.arena().gradients(),
              partial_gradients<Exec, T>(plan, buckets_, input, stage.arena(), groups), small_place_elements,
              owned_sums<Exec, T>(buckets_, false, groups.ranks.grid.dp_rank, stage), !input.deterministic),
      gather_(exec, *groups.ranks.grid.dp_group, plan, buckets_, stage.arena(), {}, !input.deterministic),
      expert_reduce_(exec, *groups.ranks.holders, buckets_of(buckets_, true), stage.arena().gradients(), {},
                     small_place_elements, owned_sums<Exec, T>(buckets_, true, groups.ranks.grid.dp_rank, stage),
                     !input.deterministic),
      expert_gather_(exec, *groups.ranks.holders, plan, buckets_, stage.arena(),
                     holders_of_experts(input.parallel, groups.ranks.grid.dp_rank), !input.deterministic),
      drifts_(replicas_drift(input.parallel, input.optimizer)),
      updates_every_(input.updates_every),
      exposed_(input.parallel.reduce == ParallelOptions::Reduce::all),
      watch_(exec) {
  SumStaging staging = common_staging(plan, input, stage.part());
  staging.cover(sum_staging(sums_of_updates(plan, input, stage.part(), groups.ranks.grid.dp_rank), stage.part()));
  groups.tensor.reserve(staging.group);
  groups.replicas.reserve(staging.same_heads);
  OptimizerOptions optimizer = input.optimizer;
  optimizer.refresh.count = plan.refreshes;
  optimizer.refresh.window = plan.refresh_window;
  if (input.parallel.partition == ParallelOptions::Partition::groups && groups.ranks.all->size() > 1)
    shares_ = std::make_unique<StageShares<Exec, T>>(exec, *groups.ranks.all, plan, input, stage.arena(),
                                                     stage.norm().nonfinite());
  stage.make_optimizer(input.model, optimizer, moved_items(), groups.workers);
  if (std::any_of(stage.tensors().begin(), stage.tensors().end(), [](const auto& t) { return t.sharded; }))
    sharded_ = std::make_unique<ShardedMuon<Exec, T>>(exec, stage.tensors(), input.optimizer, input.deterministic,
                                                      groups.tensor, stage.norm().nonfinite());
  if (const QkClip<Exec, T>* clip = stage.qk_clip()) {
    homes_.clip_by(*clip);
    if (shares_) shares_->clip_by(*clip);
  }
  if (input.train.ema_tau > 0) ema_ = std::make_unique<WeightEma<Exec>>(exec, trained_fields(), input.train.ema_tau);
  if (input.train.lookahead.factor > 0)
    lookahead_ = std::make_unique<Lookahead<Exec>>(exec, trained_fields(), input.train.lookahead);
  if (stage.arena().layout().weights_in_turn) {
    turns_.push_back(
        std::make_unique<BlockGather<Exec, T>>(exec, *groups.ranks.grid.dp_group, plan, buckets_, stage.arena()));
    if (input.parallel.ep > 1)
      turns_.push_back(
          std::make_unique<BlockGather<Exec, T>>(exec, *groups.ranks.holders, plan, buckets_, stage.arena(),
                                                 holders_of_experts(input.parallel, groups.ranks.grid.dp_rank)));
  }
  if (input.parallel.overlap_updates) {
    typename BucketUpdates<Exec, T>::Exchanges exchanges;
    exchanges.reduces = {&reduce_, &expert_reduce_};
    exchanges.gathers = {&gather_, &expert_gather_};
    exchanges.complete = [this] { complete(); };
    exchanges.trace = trace;
    early_ = std::make_unique<BucketUpdates<Exec, T>>(exec, plan, buckets_, stage, exchanges);
  }
  if (drifts_) start_coherence(input);
  if (updates_every_ > 0) start_meter(input);
}

template <class Exec, class T>
void StageExchanges<Exec, T>::start_meter(const PlanInput& input) {
  std::vector<OwnedTensor<Exec, T>> tensors = stage_.tensors();
  for (const OwnedTensor<Exec, T>& whole : homes_.tensors()) tensors.push_back(whole);
  std::vector<GroupOps<Exec>*> groups(tensors.size(), nullptr);
  if (shares_) shares_->add_tensors(tensors, groups);
  MatrixSet<Exec>* const matrices = stage_.optimizer().matrices();
  meter_ = std::make_unique<UpdateMeter<Exec, T>>(
      exec_,
      typename UpdateMeter<Exec, T>::Parts{tensors, matrices ? matrices->items() : std::vector<MatrixItem<Exec>>(),
                                           input.optimizer, input.deterministic, groups_.tensor, groups});
}

// Pieces travel in host memory: no group needs to know of devices.
template <class Exec, class T>
void StageExchanges<Exec, T>::start_coherence(const PlanInput& input) {
  const ParallelOptions& parallel = input.parallel;
  if (replicated_over_tp(parallel)) {
    const int color = replicated_over_dp(parallel) ? 0 : groups_.ranks.grid.dp_rank;
    owned_ = groups_.ranks.grid.dp > 1 && !replicated_over_dp(parallel);
    replica_group_ = with_node_groups(groups_.ranks.all->split(color, groups_.ranks.all->rank()), parallel.node_size);
  }
  MatrixSet<Exec>* const matrices = stage_.optimizer().matrices();
  if (matrices == nullptr) return;
  Communicator& group = replica_group_ ? *replica_group_ : *groups_.ranks.grid.dp_group;
  const NodeLevels levels = group.levels() != nullptr ? *group.levels() : replica_levels(parallel);
  const RefreshOptions& refresh = input.optimizer.refresh;
  const CoherenceRule rule{input.optimizer.matrix->refresh_staleness, refresh.coherence_every, refresh.coherence_drift,
                           input.seed};
  coherence_ = std::make_unique<Coherence<Exec>>(exec_, group, levels, *matrices, rule, [this] { complete(); });
}

template <class Exec, class T>
void StageExchanges<Exec, T>::block_done(int block) {
  const SecondsSpent spent(reduce_seconds_);
  reduce_.block_done(block);
  expert_reduce_.block_done(block);
}

template <class Exec, class T>
void StageExchanges<Exec, T>::free_place(int block) {
  const SecondsSpent spent(reduce_seconds_);
  reduce_.free_place(block);
  expert_reduce_.free_place(block);
}

template <class Exec, class T>
void StageExchanges<Exec, T>::finish_gradients() {
  const TraceSpan span(trace_, "rest of the gradients");
  reduce_.finish();
  expert_reduce_.finish();
}

template <class Exec, class T>
std::span<const double> StageExchanges<Exec, T>::sum(std::span<double> losses, const BatchShare& mine,
                                                     std::int64_t minibatch) {
  const TraceSpan span(trace_, "loss and norm");
  GradientNorm<Exec, T>& norm = stage_.norm();
  complete();
  if (QkClip<Exec, T>* clip = stage_.qk_clip()) clip->send(exec_, minibatch);
  std::vector<double>& squares = norm.squares(exec_);
  std::fill(losses.begin(), losses.end(), 0.0);
  if (stage_.is_last())
    for (int micro = 0; micro < mine.count; ++micro) losses[at(mine.number(micro))] = norm.noted(micro);
  if (groups_.ranks.grid.dp > 1) {  // every place of both lists is filled by one rank: the sums are exact
    sums_.assign(losses.begin(), losses.end());
    sums_.insert(sums_.end(), squares.begin(), squares.end());
    groups_.ranks.grid.dp_group->all_reduce(sums_.data(), sums_.size(), Reduction::sum);
    std::copy_n(sums_.begin(), losses.size(), losses.begin());
    std::copy(sums_.begin() + static_cast<std::ptrdiff_t>(losses.size()), sums_.end(), squares.begin());
  }
  std::vector<double>& by_tensor = norm.by_tensor();
  if (groups_.ranks.grid.tp > 1) sum_over_shards();
  return by_tensor;
}

// Adds the squares of a tensor's shards in the order of the ranks.
template <class Exec, class T>
void StageExchanges<Exec, T>::sum_over_shards() {
  std::vector<double>& squares = stage_.norm().by_tensor();
  const std::size_t n = squares.size();
  shard_squares_.resize(n * static_cast<std::size_t>(groups_.ranks.grid.tp));
  groups_.ranks.grid.tp_group->all_gather(squares.data(), n * sizeof(double), shard_squares_.data());
  std::fill(squares.begin(), squares.end(), 0.0);
  for (std::size_t i = 0; i < shard_squares_.size(); ++i) squares[i % n] += shard_squares_[i];
}

// On a host the update is over when its call is. A device goes on with it: the next wait is the one for the sums of the
// next step.
template <class Exec, class T>
void StageExchanges<Exec, T>::update(std::int64_t t, double factor, double gradient_scale) {
  count_last_update();
  const auto begin = std::chrono::steady_clock::now();
  watch_.start();
  run_update(t, factor, gradient_scale);
  watch_.stop();
  if (is_host<Exec>) exec_.fence("update");
  measures_.clear();
  if (measures(t)) {
    complete();
    measures_ = meter_->read(exec_);
  }
  make_equal(Replicas::due);
  const double called = seconds_since(begin);
  const bool ordered = start_gather();
  if (ordered && !is_host<Exec>) called_seconds_ = called;
  if (!exposed_) return;
  finish_gather();
  exposed_seconds_ += gather_.take_wait_seconds() + expert_gather_.take_wait_seconds();
}

template <class Exec, class T>
void StageExchanges<Exec, T>::synchronise() {
  if (!drifts_) return;
  finish_gather();
  make_equal(Replicas::all);
  if (!owned_) return;
  start_gather();
  finish_gather();
}

// Homes of different matrices are on different ranks: those that have none take part in what follows all the same.
template <class Exec, class T>
void StageExchanges<Exec, T>::make_equal(Replicas which) {
  if (!drifts_) return;
  const TraceSpan span(trace_, "coherence");
  const std::vector<std::size_t> none;
  const std::vector<std::size_t>& matrices = coherence_ == nullptr    ? none
                                             : which == Replicas::due ? coherence_->after_update()
                                                                      : coherence_->synchronise();
  published_.add(homes_.publish(matrices, stage_.optimizer().matrix_count() - homes_.items().size()));
}

template <class Exec, class T>
CoherenceCount StageExchanges<Exec, T>::take_coherence() {
  CoherenceCount count = coherence_ ? coherence_->take_count() : CoherenceCount{};
  count.bytes.add(std::exchange(published_, {}));
  return count;
}

// Called before a wait for the space, which has no limit of its own: watches what other ranks have to do for it.
template <class Exec, class T>
void StageExchanges<Exec, T>::complete() {
  groups_.ranks.grid.dp_group->complete("data-parallel group");
  groups_.ranks.holders->complete("ranks that hold the same experts");
  groups_.experts.complete();
  groups_.tensor.complete();
  groups_.replicas.complete();
  if (shares_) shares_->complete();
}

// The sums of this step have been waited for, and so has the last update, which runs before them.
template <class Exec, class T>
void StageExchanges<Exec, T>::count_last_update() {
  if (called_seconds_ > 0) update_seconds_ += std::max(0.0, watch_.seconds() - called_seconds_);
  called_seconds_ = 0;
}

template <class Exec, class T>
void StageExchanges<Exec, T>::run_update(std::int64_t t, double factor, double gradient_scale) {
  Optimizer<Exec, T>& optimizer = stage_.optimizer();
  if (measures(t) && !early_) meter_->before(exec_);
  if (QkClip<Exec, T>* clip = stage_.qk_clip()) {
    std::vector<double>& scores = clip->take();
    groups_.ranks.all->all_reduce(scores.data(), scores.size(), Reduction::max);
  }
  stage_.run_update([&] {
    {
      const TraceSpan span(trace_, "scalar optimizer");
      optimizer.step_scalar(exec_, t, factor, gradient_scale);
    }
    const TraceSpan span(trace_, "matrices");
    if (!early_) optimizer.step_matrices(t, factor, gradient_scale, 0, optimizer.matrix_count() - moved_items().size());
  });
  homes_.update(optimizer, t, factor, gradient_scale, trace_);
  if (shares_) shares_->update(optimizer, t, factor, gradient_scale, trace_);
  if (sharded_) {
    const TraceSpan span(trace_, "sharded matrices");
    sharded_->step(exec_, t, factor, gradient_scale);
  }
  if (const QkClip<Exec, T>* clip = stage_.qk_clip()) largest_score_ = clip->apply(exec_);
  if (measures(t)) meter_->after(exec_, t, factor);
  if (const RouterBias<Exec, T>* bias = stage_.router_bias()) bias->apply(exec_, t, *stage_.expert_loads());
}

template <class Exec, class T>
double StageExchanges<Exec, T>::update_matrices(std::int64_t t, double factor, double clip_norm) {
  if (measures(t)) meter_->before(exec_);
  return early_->run(t, factor, clip_norm);
}

// All data-parallel ranks have other tokens, whichever experts they hold.
template <class Exec, class T>
void StageExchanges<Exec, T>::sum_loads(std::int64_t minibatch) {
  ExpertLoads* const counted = stage_.expert_loads();
  if (counted == nullptr) return;
  std::vector<double>& loads = counted->take(minibatch);
  if (groups_.ranks.grid.dp > 1) groups_.ranks.grid.dp_group->all_reduce(loads.data(), loads.size(), Reduction::sum);
  largest_load_ = counted->largest();
}

template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> StageExchanges<Exec, T>::kept_tensors() {
  std::vector<OwnedTensor<Exec, T>> tensors = stage_.tensors();
  for (OwnedTensor<Exec, T>& whole : homes_.tensors()) tensors.push_back(std::move(whole));
  std::vector<GroupOps<Exec>*> groups;
  if (shares_) shares_->add_tensors(tensors, groups);
  return tensors;
}

template <class Exec, class T>
std::vector<StateField> StageExchanges<Exec, T>::model_fields() const {
  std::vector<StateField> fields = trained_fields();
  for (StateField& field : stage_.frozen_fields()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::vector<StateField> StageExchanges<Exec, T>::trained_fields() const {
  std::vector<StateField> fields = stage_.trained_fields();
  for (StateField& field : homes_.master_fields()) fields.push_back(std::move(field));
  if (shares_)
    for (StateField& field : shares_->master_fields()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::vector<StateField> StageExchanges<Exec, T>::optimizer_fields() const {
  std::vector<StateField> fields = stage_.optimizer().state();
  for (StateField& field : stage_.merge_fields(groups_.ranks.all->rank() == 0)) fields.push_back(std::move(field));
  if (shares_) shares_->add_optimizer_fields(fields);
  if (sharded_)
    for (StateField& field : sharded_->state()) fields.push_back(std::move(field));
  if (ema_)
    for (StateField& field : ema_->fields()) fields.push_back(std::move(field));
  if (lookahead_)
    for (StateField& field : lookahead_->fields()) fields.push_back(std::move(field));
  return fields;
}

// Weights of the last update that are under way arrive before their owners move them.
template <class Exec, class T>
void StageExchanges<Exec, T>::look_ahead(std::int64_t t, double factor) {
  if (!lookahead_) return;
  const bool moves = lookahead_->moves(t);
  if (moves) finish_gather();
  lookahead_->begin(exec_, t, factor);
  if (moves) send_weights();
}

template <class Exec, class T>
void StageExchanges<Exec, T>::look_back() {
  if (!lookahead_) return;
  finish_gather();
  if (lookahead_->withdraw(exec_)) send_weights();
}

// Lets weights that were updated where they are owned travel, now or when a pass reads their block. Returns false where
// the host has waited for the space.
template <class Exec, class T>
bool StageExchanges<Exec, T>::start_gather() {
  for (auto& turns : turns_) turns->forget();
  if (!turns_.empty()) return true;
  const bool ordered = gather_.start();
  return expert_gather_.start() && ordered;
}

// Sends master weights that were written on all ranks, rounded, to those that compute with them.
template <class Exec, class T>
void StageExchanges<Exec, T>::send_weights() {
  stage_.weights_changed();
  if (is_host<Exec>) exec_.fence("weights");
  publish();
  start_gather();
}

template <class Exec, class T>
void StageExchanges<Exec, T>::publish() {
  homes_.publish();
  if (shares_) shares_->publish();
}

template <class Exec, class T>
void StageExchanges<Exec, T>::start_averages() {
  stage_.optimizer().start_average(exec_);
  if (ema_) ema_->start(exec_);
}

template <class Exec, class T>
std::vector<UpdateRecord> StageExchanges<Exec, T>::update_records(std::int64_t made) const {
  std::vector<UpdateRecord> records = stage_.optimizer().records();
  if (shares_)
    for (UpdateRecord& record : shares_->records()) records.push_back(std::move(record));
  if (sharded_)
    for (UpdateRecord& record : sharded_->records()) records.push_back(std::move(record));
  for (std::size_t i = 0; i < measures_.size(); ++i)
    for (UpdateRecord& record : records)
      if (record.tensor == meter_->name(i)) add_measure(record.measure, measures_[i]);
  for (UpdateRecord& record : records) record.due = early_ ? early_->updates_of(record.tensor, made) : made;
  return records;
}

template <class Exec, class T>
void StageExchanges<Exec, T>::weights_changed() {
  stage_.weights_changed();
  exec_.fence("weights");
  if (coherence_) coherence_->start();
  publish();
  start_gather();
  finish_gather();
}

template <class Exec, class T>
StageSeconds StageExchanges<Exec, T>::take_seconds() {
  double gather = gather_.take_wait_seconds() + expert_gather_.take_wait_seconds();
  for (auto& turns : turns_) gather += turns->take_wait_seconds();
  return {
      gather, std::exchange(reduce_seconds_, 0.0),
      homes_.take_wait_seconds() + (shares_ ? shares_->take_wait_seconds() : 0) + std::exchange(exposed_seconds_, 0.0),
      std::exchange(update_seconds_, 0.0)};
}

template <class Exec, class T>
StageExchangeCount StageExchanges<Exec, T>::count() const {
  std::int64_t weights = 0;
  for (const auto& turns : turns_) weights += turns->exchanges_per_step();
  if (turns_.empty()) weights = gather_.exchanges_per_step() + expert_gather_.exchanges_per_step();
  return {reduce_.exchanges_per_step() + expert_reduce_.exchanges_per_step(), weights,
          homes_.exchanges_per_step() + (shares_ ? shares_->exchanges_per_step() : 0),
          (sharded_ ? sharded_->sums_per_step() : 0) + (shares_ ? shares_->sums_per_step() : 0)};
}

#define SESTINA_STAGE_EXCHANGES(Exec, T) template class StageExchanges<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGE_EXCHANGES)

}  // namespace sestina
