#include "parallel/step/distributed_session.hpp"

#include <algorithm>
#include <numeric>

#include "core/layout/model_part.hpp"
#include "parallel/comm/traced_communicator.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/plan/partial_gradients.hpp"

namespace sestina {
namespace {

SessionSetting rank_setting(const Options& options, const BatchShare& share) {
  SessionSetting setting = session_setting(options);
  setting.micro_batch = share.micro_batch;
  setting.micros = share.count;
  return setting;
}

}  // namespace

BatchShare batch_share(const Options& options, int dp_rank) {
  BatchShare share;
  share.micro_batch = options.train.micro_batch;
  share.all = options.train.global_batch / share.micro_batch;
  share.first = share.all * dp_rank / options.parallel.dp;
  share.count = share.all * (dp_rank + 1) / options.parallel.dp - share.first;
  return share;
}

template <class Exec, class T>
DistributedSession<Exec, T>::DistributedSession(const Exec& exec, const Options& options, Communicator& world,
                                                Trace* trace)
    : exec_(exec),
      world_(world),
      trace_(trace),
      grid_(make_grid(world, options.parallel.dp, options.parallel.tp, options.parallel.node_size, !is_host<Exec>)),
      share_(batch_share(options, grid_.dp_rank)),
      whole_(options.model),
      losses_(static_cast<std::size_t>(share_.all)) {
  const SessionSetting setting = rank_setting(options, share_);
  if (world.size() == 1) {
    session_ = std::make_unique<Session<Exec, T>>(exec, options.model, setting, &options.optimizer);
    if (trace_) session_->set_hooks(&hooks_);
    return;
  }
  trace_groups();
  const int dp_rank = grid_.dp_rank, tp = grid_.tp, tp_rank = grid_.tp_rank;
  stage_ = plan_stage(options, all_layers(options.model));
  lay_out_buckets(stage_, options, tp_rank);
  const GradientBuckets buckets = gradient_buckets(stage_);
  tensor_group_ = std::make_unique<TensorGroup<Exec>>(*grid_.tp_group);
  const ModelPart part = model_part(options.model, tp, tp_rank, options.parallel.sequence_parallel);
  replica_group_ = grid_.tp_group->split(tp_rank / part.key_value_holders(), tp_rank);
  if (trace_) replica_group_ = traced(std::move(replica_group_), *trace_, "ranks with the same heads");
  replicas_ = std::make_unique<TensorGroup<Exec>>(*replica_group_);
  session_ = std::make_unique<Session<Exec, T>>(
      exec, part, setting, shard_layout(stage_, buckets, options, dp_rank, tp_rank), tensor_group_.get());
  const Arena<Exec, T>& arena = session_->arena();
  homes_ = std::make_unique<MatrixHomes<Exec, T>>(exec, *grid_.tp_group, stage_, options, arena, dp_rank);
  session_->make_optimizer(options.model, options.optimizer, homes_->items());
  if (std::any_of(session_->tensors().begin(), session_->tensors().end(), [](const auto& t) { return t.sharded; }))
    sharded_ =
        std::make_unique<ShardedMuon<Exec, T>>(exec, session_->tensors(), options.optimizer, setting.deterministic,
                                               *tensor_group_, session_->norm().nonfinite());

  std::vector<PartialGradient<Exec>> partial;
  for (const PartialRun& run : partial_runs(stage_, buckets, options))
    partial.push_back({run.block,
                       {arena.gradients().data() + run.begin, static_cast<std::size_t>(run.elements)},
                       run.same_heads ? replicas_.get() : tensor_group_.get()});
  reduce_ =
      std::make_unique<GradientReduce<Exec>>(exec, *grid_.dp_group, buckets, arena.gradients(), std::move(partial));
  gather_ = std::make_unique<WeightGather<Exec, T>>(*grid_.dp_group, stage_, buckets, arena);
  session_->set_hooks(&hooks_);
}

template <class Exec, class T>
DistributedSession<Exec, T>::~DistributedSession() = default;

template <class Exec, class T>
void DistributedSession<Exec, T>::trace_groups() {
  if (!trace_) return;
  grid_.tp_group = traced(std::move(grid_.tp_group), *trace_, "tensor-parallel group");
  grid_.dp_group = traced(std::move(grid_.dp_group), *trace_, "data-parallel group");
}

template <class Exec, class T>
void DistributedSession<Exec, T>::initialise(std::uint64_t seed) {
  session_->initialise(seed);
  if (homes_) homes_->initialise(whole_.initializer_range, seed);
}

template <class Exec, class T>
void DistributedSession<Exec, T>::forward_backward(double gradient_scale, int micro) {
  hooks_.training = true;
  session_->accumulate(gradient_scale, micro);
  hooks_.training = false;
  hooks_.span.end();
}

template <class Exec, class T>
typename DistributedSession<Exec, T>::StepSums DistributedSession<Exec, T>::complete() {
  GradientNorm<Exec, T>& norm = session_->norm();
  if (reduce_) {
    const TraceSpan span(trace_, "rest of the gradients");
    reduce_->finish();
  }
  const TraceSpan span(trace_, "loss and norm");
  std::vector<double>& squares = norm.squares(exec_);
  std::fill(losses_.begin(), losses_.end(), 0.0);
  for (int micro = 0; micro < share_.count; ++micro)
    losses_[static_cast<std::size_t>(share_.first + micro)] = norm.noted(micro);
  if (grid_.dp > 1) {  // every place of both lists is filled by one rank: the sums are exact
    sums_.assign(losses_.begin(), losses_.end());
    sums_.insert(sums_.end(), squares.begin(), squares.end());
    grid_.dp_group->all_reduce(sums_.data(), sums_.size(), Reduction::sum);
    std::copy_n(sums_.begin(), losses_.size(), losses_.begin());
    std::copy(sums_.begin() + static_cast<std::ptrdiff_t>(losses_.size()), sums_.end(), squares.begin());
  }
  norm.by_tensor();
  if (grid_.tp > 1) complete_norm();
  StepSums result;
  result.loss = std::accumulate(losses_.begin(), losses_.end(), 0.0);
  result.norm = norm.norm();
  result.weights_finite = norm.weights_finite();
  return result;
}

// Squares of a tensor's shards, added in the order of the ranks.
template <class Exec, class T>
void DistributedSession<Exec, T>::complete_norm() {
  std::vector<double>& squares = session_->norm().by_tensor();
  const std::size_t n = squares.size();
  shard_squares_.resize(n * static_cast<std::size_t>(grid_.tp));
  grid_.tp_group->all_gather(squares.data(), n * sizeof(double), shard_squares_.data());
  std::fill(squares.begin(), squares.end(), 0.0);
  for (std::size_t i = 0; i < shard_squares_.size(); ++i) squares[i % n] += shard_squares_[i];
}

template <class Exec, class T>
void DistributedSession<Exec, T>::update(std::int64_t t, double factor, double gradient_scale) {
  if (!gather_) {
    const TraceSpan span(trace_, "optimizer");
    session_->update(t, factor, gradient_scale);
    session_->merge_if_due(t);
    exec_.fence("update");  // so that its time is that of this step
    return;
  }
  Optimizer<Exec, T>& optimizer = session_->optimizer();
  {
    const TraceSpan span(trace_, "scalar optimizer");
    optimizer.step_scalar(exec_, t, factor, gradient_scale);
  }
  {
    const TraceSpan span(trace_, "matrices");
    optimizer.step_matrices(t, factor, gradient_scale, 0, optimizer.matrix_count() - homes_->items().size());
  }
  homes_->update(optimizer, t, factor, gradient_scale, trace_);
  if (sharded_) {
    const TraceSpan span(trace_, "sharded matrices");
    sharded_->step(exec_, factor, gradient_scale);
  }
  if (QkClip<Exec, T>* clip = session_->qk_clip()) {
    std::vector<double>& scores = clip->fetch(exec_);
    world_.all_reduce(scores.data(), scores.size(), Reduction::max);
    clip->apply(exec_);
  }
  exec_.fence("gather");
  gather_->start();
  if (!session_->merges_behind(t)) return;
  gather_->finish();  // every rank merges all weights, alike
  session_->merge_if_due(t);
}

template <class Exec, class T>
void DistributedSession<Exec, T>::finish_gather() {
  if (gather_) gather_->finish();
}

template <class Exec, class T>
double DistributedSession<Exec, T>::take_gather_seconds() {
  return gather_ ? gather_->take_wait_seconds() : 0;
}

template <class Exec, class T>
std::vector<StateField> DistributedSession<Exec, T>::model_fields() const {
  std::vector<StateField> fields = session_->model_fields();
  if (homes_)
    for (StateField& field : homes_->master_fields()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::vector<StateField> DistributedSession<Exec, T>::optimizer_fields() const {
  std::vector<StateField> fields = session_->optimizer_fields();
  if (sharded_)
    for (StateField& field : sharded_->state()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::vector<StateField> DistributedSession<Exec, T>::fields() const {
  std::vector<StateField> all = model_fields();
  for (StateField& field : optimizer_fields()) all.push_back(std::move(field));
  return all;
}

template <class Exec, class T>
void DistributedSession<Exec, T>::weights_changed() {
  session_->weights_changed();
  exec_.fence("weights");
  if (!gather_) return;
  homes_->publish();
  gather_->start();
  gather_->finish();
}

template <class Exec, class T>
typename DistributedSession<Exec, T>::Exchanges DistributedSession<Exec, T>::exchanges_per_step() const {
  if (!gather_) return {};
  return {reduce_->exchanges_per_step(), gather_->exchanges_per_step(), homes_->exchanges_per_step()};
}

#define SESTINA_DISTRIBUTED_SESSION(Exec, T) template class DistributedSession<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_DISTRIBUTED_SESSION)

}  // namespace sestina
