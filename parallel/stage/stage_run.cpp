#include "parallel/stage/stage_run.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace sestina {

template <class Exec, class T>
StageRun<Exec, T>::StageRun(const Exec& exec, const StageParts& parts, const RankParts& rank,
                            const typename Base::Shared& shared)
    : Base(exec, parts, rank, shared, true),
      share_(rank.share),
      exchanges_(exec, rank.input, plan_, shared->groups, stage_, rank.trace),
      versions_(rank.part.config, plan_.layers, stage_.arena(), place_.versions()),
      correction_(rank.input.parallel.correction, place_.delay, rank.part.config, plan_.layers, stage_.arena(),
                  versions_),
      own_output_(slots_.of(0).output),
      hooks_(*this, rank.trace),
      rotations_every_(rank.input.rotations_every),
      drift_every_(rank.input.parallel.is_async() ? rank.input.metrics_every : 0) {
  QkClip<Exec, T>* const clip = stage_.qk_clip();
  const int minibatches = rank.input.parallel.is_async() ? place_.ahead / place_.micros + 2 : 1;  // in passes
  if (clip && minibatches > 1) clip->keep(minibatches);
  if (ExpertLoads* const loads = stage_.expert_loads()) loads->keep(minibatches);
  if (drift_every_ > 0 && place_.delay > 0 && place_.stash == ParallelOptions::Stash::on)
    meter_ =
        std::make_unique<DriftMeter<Exec, T>>(stage_.arena(), stage_.part().ep > 1 && rank.groups.grid.dp_rank > 0);
  const ProcessGrid& grid = rank.groups.grid;
  if (rotations_every_ > 0 || rank.part.config.linear.merge_bound > 0)
    rotations_ = std::make_unique<RotationMeter<Exec, T>>(
        exec, rank.part.config.linear, stage_.weights(), RotationShare{grid.dp, grid.dp_rank, grid.tp_rank},
        rotations_every_ > 0 ? RotationLook::all : RotationLook::norm);
}

template <class Exec, class T>
void StageRun<Exec, T>::Hooks::before_forward(int block) {
  span.end();
  run.exchanges_.before_forward(block);
  run.complete_for_experts();
  if (training) span.begin("forward", block);
}

// A block whose experts are shared out waits for the space to know how many rows it sends: until then other ranks are
// watched for what the space waits for.
template <class Exec, class T>
void StageRun<Exec, T>::complete_for_experts() {
  if (stage_.part().ep > 1) exchanges_.complete();
}

// The last micro-batch of an update completes the block's gradients, or each does so with its own.
template <class Exec, class T>
void StageRun<Exec, T>::Hooks::after_backward(int block) {
  using Part = typename Stage<Exec, T>::Part;
  const bool head = block > static_cast<int>(run.stage_.model().config().num_hidden_layers);  // never split
  if (run.probe_) run.probe_->after_backward(block, head || !run.place_.split, true);
  run.finish_part(block, micro, run.place_.split && !head ? Part::weight : Part::all);
  span.end();
  const bool complete = micro + 1 == run.place_.micros || run.exchanges_.takes_each_micro();
  if (complete && !run.again_) run.exchanges_.block_done(block);
}

template <class Exec, class T>
void StageRun<Exec, T>::finish_part(int block, int micro, typename Stage<Exec, T>::Part part) {
  if (watch_)
    watch_->finished(exec_, block, part, stage_.own_gradients(micro), again_ ? std::nullopt : std::optional(micro));
  if (!again_) stage_.accumulate(*hooks_.weights, block, micro, part);
}

template <class Exec, class T>
void StageRun<Exec, T>::pass(const Weights<Exec, T>& weights, Activations<Exec, T>& slot,
                             const TokenSlot<Exec>& tokens) {
  hooks_.training = true;
  stage_.forward(weights, slot, tokens.inputs(), tokens.first_key(), hooks_);
  hooks_.training = false;
  hooks_.span.end();
}

template <class Exec, class T>
void StageRun<Exec, T>::forward(std::int64_t micro) {
  const std::int64_t minibatch = micro / place_.micros;
  if (in_update(micro) == 0) stage_.start_step(minibatch);
  Activations<Exec, T>& slot = slots_.of(micro);
  if (in_) slot.bind_input(in_->receive_activation(micro));
  if (out_) slot.output = out_->activation_to_write(micro);
  const Weights<Exec, T>& weights = weights_of(place_.version(minibatch));
  if (probe_) probe_->begin(slot, in_update(micro));
  if (stage_.joins_passes(hooks_)) return;
  stage_.watch(slot, minibatch);
  pass(weights, slot, shared_->tokens(micro));
  stage_.ignore(slot);
  if (out_) out_->send_activation(micro);
  if (sends_head() && in_update(micro) == 0) send_head(weights, minibatch);
}

// Called before a backward pass of the last stage: receives the head of the minibatch, and makes room for its gradient.
template <class Exec, class T>
void StageRun<Exec, T>::receive_head(std::int64_t micro) {
  const std::int64_t minibatch = micro / place_.micros;
  const Matrix<T, Exec> head =
      in_update(micro) == 0 ? tie_->weights.receive(exec_, minibatch) : tie_->weights.place(minibatch);
  stage_.bind_head(head, tie_->gradients.to_write(micro));
}

template <class Exec, class T>
void StageRun<Exec, T>::begin_embedding_gradient(std::int64_t micro) {
  if (!sends_head()) return;
  exchanges_.free_place(0);  // that of the embedding
  stage_.begin_embedding_gradient(tie_->gradients.receive(exec_, micro), again_ ? 0 : in_update(micro));
}

// Returns the weights that the backward pass multiplies by, and makes the slot ready for it.
template <class Exec, class T>
const Weights<Exec, T>& StageRun<Exec, T>::prepare_backward(std::int64_t micro, const TokenSlot<Exec>& tokens,
                                                            Activations<Exec, T>& slot) {
  const bool stashed = place_.stash == ParallelOptions::Stash::on;
  if (receives_head()) receive_head(micro);
  const std::int64_t minibatch = micro / place_.micros;
  const Weights<Exec, T>* estimate = correction_.estimate(minibatch);
  const Weights<Exec, T>& weights = estimate  ? *estimate
                                    : stashed ? weights_of(place_.version(minibatch))
                                              : stage_.weights();
  if (in_) slot.bind_input(in_->activation(micro));
  slot.tokens = tokens.inputs();
  slot.first_key = tokens.first_key();
  if (place_.recomputes()) {
    slot.output = own_output_;
    pass(weights, slot, tokens);
  }
  if (out_) slot.gradient = out_->receive_gradient(micro);
  hooks_.micro = in_update(micro);
  hooks_.weights = &weights;
  return weights;
}

template <class Exec, class T>
void StageRun<Exec, T>::hand_down(std::int64_t micro, const Activations<Exec, T>& slot) {
  hooks_.span.end();
  if (receives_head()) tie_->gradients.send(exec_, micro);
  if (!in_) return;
  const Matrix<T, Exec> gradient = in_->gradient_to_write(micro);
  convert<Exec, T, T>(exec_, Vector<const T, Exec>(slot.gradient.data(), slot.gradient.size()),
                      Vector<T, Exec>(gradient.data(), gradient.size()));
  in_->send_gradient(micro);
}

template <class Exec, class T>
void StageRun<Exec, T>::backward(std::int64_t micro, double gradient_scale) {
  const TokenSlot<Exec>& tokens = shared_->tokens(micro);
  Activations<Exec, T>& slot = slots_.of(micro);
  if (probe_) probe_->begin(slot, in_update(micro));
  const Weights<Exec, T>& weights = prepare_backward(micro, tokens, slot);
  if (place_.split) {
    stage_.backward_input(weights, slot, tokens.targets(), gradient_scale, in_update(micro), hooks_);
  } else {
    begin_embedding_gradient(micro);
    if (stage_.joins_passes(hooks_))
      stage_.forward_and_backward(weights, slot, tokens, gradient_scale, in_update(micro), hooks_);
    else
      stage_.backward(weights, slot, tokens.targets(), gradient_scale, in_update(micro), hooks_);
  }
  hand_down(micro, slot);
  if (!place_.split) end_backward(micro);
}

template <class Exec, class T>
void StageRun<Exec, T>::forward_again() {
  constexpr std::int64_t micro = ForwardStage::evaluation;
  Activations<Exec, T>& slot = slots_.of(0);
  if (in_) slot.bind_input(in_->receive_activation(micro));
  if (out_) slot.output = out_->activation_to_write(micro);
  if (probe_) probe_->begin(slot, std::nullopt);
  pass(stage_.weights(), slot, shared_->evaluated);
  if (out_) out_->send_activation(micro);
  exchange_head();
}

template <class Exec, class T>
void StageRun<Exec, T>::backward_again(double gradient_scale) {
  constexpr std::int64_t micro = ForwardStage::evaluation;
  const Vector<const std::int32_t, Exec> targets = shared_->evaluated.targets();
  Activations<Exec, T>& slot = slots_.of(0);
  if (receives_head()) stage_.bind_head(tie_->weights.place(micro), tie_->gradients.to_write(micro));
  if (out_) slot.gradient = out_->receive_gradient(micro);
  hooks_.micro = 0;
  again_ = true;
  if (probe_) probe_->begin(slot, std::nullopt);
  if (place_.split) {
    stage_.backward_input(stage_.weights(), slot, targets, gradient_scale, 0, hooks_);
    hand_down(micro, slot);
    begin_embedding_gradient(micro);
    stage_.backward_weight(stage_.weights(), slot, 0, hooks_);
    hooks_.span.end();
  } else {
    begin_embedding_gradient(micro);
    stage_.backward(stage_.weights(), slot, targets, gradient_scale, 0, hooks_);
    hand_down(micro, slot);
  }
  again_ = false;
}

template <class Exec, class T>
void StageRun<Exec, T>::expect_messages(std::int64_t first, std::int64_t begin, std::int64_t end) {
  if (in_) in_->expect_activations(begin, end, first);
  if (out_) out_->expect_gradients(first, first + place_.micros);
}

template <class Exec, class T>
void StageRun<Exec, T>::start_receive(PipelineReceive::What what, std::int64_t micro) {
  switch (what) {
    case PipelineReceive::What::activation:
      return in_->start_activation(micro);
    case PipelineReceive::What::gradient:
      return out_->start_gradient(micro);
    case PipelineReceive::What::head:
      return tie_->weights.start_receive(exec_, micro / place_.micros);
    case PipelineReceive::What::head_gradient:
      return tie_->gradients.start_receive(exec_, micro);
  }
}

// Says that nothing reads what came for this micro-batch again.
template <class Exec, class T>
void StageRun<Exec, T>::end_backward(std::int64_t micro) {
  if (in_) in_->has_read_activation(micro);
  if (out_) out_->has_read_gradient(micro);
}

template <class Exec, class T>
void StageRun<Exec, T>::backward_weight(std::int64_t micro) {
  hooks_.micro = in_update(micro);
  hooks_.weights = &stage_.weights();
  if (probe_) probe_->begin(slots_.of(micro), in_update(micro));
  begin_embedding_gradient(micro);
  hooks_.span.begin("backward weights", place_.number);
  stage_.backward_weight(stage_.weights(), slots_.of(micro), in_update(micro), hooks_);
  hooks_.span.end();
  end_backward(micro);
}

template <class Exec, class T>
void StageRun<Exec, T>::update(std::int64_t t, double factor, const ClipScales& scales) {
  before_update();
  if (!scales.by_tensor.empty()) stage_.scale_gradients(scales.by_tensor);
  exchanges_.sum_loads(updates_);
  exchanges_.update(t, factor * correction_.rate(t), scales.by_tensor.empty() ? scales.all : 1);
  ++made_;
  after_update(t);
}

template <class Exec, class T>
void StageRun<Exec, T>::withhold() {
  before_update();
  exchanges_.sum_loads(updates_);
  exchanges_.forget_measures();
  stage_.optimizer().withhold(exec_, updates_ + 1);
  after_update(updates_ + 1);
}

template <class Exec, class T>
std::vector<UpdateRecord> StageRun<Exec, T>::update_records() const {
  return exchanges_.update_records(made_);
}

// Keeps what later passes will read of the weights as they are now.
template <class Exec, class T>
void StageRun<Exec, T>::before_update() {
  if (drift_every_ > 0) note_delay();
  if (versions_.depth() == 0 && !correction_.follows_weights()) return;
  exchanges_.finish_gather();
  if (!correction_.predicts()) versions_.keep(exec_, updates_);
  correction_.before_update(exec_, updates_);
}

// Called before room is made for the weights as they are now. With predicted weights the drift is their error.
template <class Exec, class T>
void StageRun<Exec, T>::note_delay() {
  const std::int64_t version = place_.version(updates_);
  delay_ = {static_cast<double>(updates_ - version)};
  if ((updates_ + 1) % drift_every_ != 0) return;
  if (version == updates_ && !correction_.predicts()) return;
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  if (!meter_) {
    delay_.moved = delay_.weight = unknown;
    return;
  }
  exchanges_.finish_gather();
  const WeightDrift drift = meter_->from(exec_, versions_, version);
  delay_.moved = drift.moved;
  delay_.weight = drift.weight;
}

// Merges come at their updates, withheld or not: the pipeline has drained for them.
template <class Exec, class T>
void StageRun<Exec, T>::after_update(std::int64_t t) {
  if (rotations_every_ > 0 && t % rotations_every_ == 0) {
    exchanges_.finish_gather();
    rotations_->measure(stage_.model(), stage_.weights());
  }
  if (stage_.merges_after(t)) {
    exchanges_.finish_gather();  // every rank merges all weights
    stage_.merge_if_due(t);
  }
  merge_early(t);
  if (correction_.follows_weights()) {
    exchanges_.finish_gather();
    correction_.after_update(exec_, updates_);
  }
  exchanges_.follow_weights(t);
  ++updates_;
}

// Merges the layers here that have a weight whose rotations are turned beyond model.linear.merge_bound. Each norm is
// measured by one data-parallel rank, on each tensor-parallel rank that has a part of the weight, and the ranks of the
// stage take the largest: all of them decide by the same numbers, at once.
template <class Exec, class T>
void StageRun<Exec, T>::merge_early(std::int64_t t) {
  const LinearOptions& linear = stage_.model().config().linear;
  early_merges_.clear();
  if (linear.merge_bound == 0 || t % linear.merge_bound_every != 0) return;
  exchanges_.finish_gather();
  std::vector<double> norms = rotations_->norms(stage_.model(), stage_.weights());
  exchanges_.ranks().all_reduce(norms.data(), norms.size(), Reduction::max);
  std::size_t number = 0;
  for_each_formed(stage_.weights(), [&](const FormedWeight& w) {
    const double norm = norms[number++];
    if (norm <= linear.merge_bound) return;
    if (early_merges_.empty() || early_merges_.back().layer != w.layer) early_merges_.push_back({w.layer, w.name, 0});
    if (norm > early_merges_.back().largest_q) early_merges_.back() = {w.layer, w.name, norm};
  });
  for (const EarlyMerge& merge : early_merges_) stage_.merge_early(merge.layer, t);
}

template <class Exec, class T>
void StageRun<Exec, T>::swap_average() {
  exchanges_.finish_gather();
  stage_.optimizer().swap_average(exec_);
  weights_changed();
}

template <class Exec, class T>
void StageRun<Exec, T>::finish_gradients() {
  exchanges_.finish_gradients();
  const std::int64_t version = place_.version(updates_);  // the version of the forward pass
  if (version < updates_) correction_.correct_gradients(exec_, version);
}

template <class Exec, class T>
void StageRun<Exec, T>::start_corrections(bool read) {
  if (read && !std::exchange(knows_rows_, true)) count_rows_again();
  if (read)
    correction_.restored(exec_);
  else
    correction_.begin(exec_, updates_);
}

// Saves have the counts of a mixture where its kernels left them: brings those of passes in flight to the host.
template <class Exec, class T>
void StageRun<Exec, T>::count_rows_again() {
  for (std::int64_t micro = updates_ * place_.micros; micro < in_flight_end(place_.ahead); ++micro)
    for (LayerActivations<Exec, T>& layer : slots_.of(micro).layers) {
      if (!layer.rows) continue;
      bring_counts(exec_, layer);
      layer.rows->received = layer.rows->sent;
    }
}

// Other ranks have sent, or will send, all that their own forward passes made.
template <class Exec, class T>
void StageRun<Exec, T>::drop_in_flight() {
  if (in_) {
    for (std::int64_t micro = in_flight_end(place_.ahead); micro < in_flight_end(place_.ahead_before); ++micro)
      in_->receive_activation(micro);
    in_->restored(0);
  }
  if (receives_head())
    for (std::int64_t minibatch = updates_; minibatch * place_.micros < in_flight_end(place_.ahead_first); ++minibatch)
      tie_->weights.receive(exec_, minibatch);
}

// Data-parallel ranks hold the same weights, which the first one saves, but for experts that they share out: of these
// the first that holds them does. What a rank does not hold is no field of it.
static void save_experts_once(std::vector<StateField>& fields, const StagePlan& plan, const ModelPart& part,
                              int dp_rank) {
  if (part.ep == 1) return;
  std::erase_if(fields, [](const StateField& field) { return field.row_begin == field.row_end; });
  for (StateField& field : fields) {
    const std::string name = field.path.substr(field.path.rfind('/') + 1);
    const auto spec =
        std::find_if(plan.specs.begin(), plan.specs.end(), [&](const TensorSpec& s) { return s.name == name; });
    field.saved = field.saved && (spec->expert >= 0 ? dp_rank < part.ep : dp_rank == 0);
  }
}

template <class Exec, class T>
std::vector<StateField> StageRun<Exec, T>::in_flight_fields(bool in_flight, bool reading) const {
  const ProcessGrid& grid = shared_->groups.ranks.grid;
  std::vector<StateField> all;
  const std::int64_t oldest = std::max(place_.version(updates_), updates_ - versions_.depth());
  const std::int64_t newest = correction_.predicts() ? updates_ : updates_ - 1;
  const bool apart = exchanges_.drifts(), saved = apart || stage_.part().ep > 1 || grid.dp_rank == 0;
  const std::string path = apart ? fmt::format("/run/pipeline/replica_{}", grid.dp_rank) : "/run/pipeline";
  for (std::int64_t version = oldest; version <= newest; ++version)
    for (StateField& field : versions_.fields(version, fmt::format("{}/version_{}", path, updates_ - version), saved))
      all.push_back(std::move(field));
  for (StateField& field : correction_.fields(path, saved)) all.push_back(std::move(field));
  save_experts_once(all, plan_, stage_.part(), grid.dp_rank);
  if (place_.stash == ParallelOptions::Stash::on || !in_flight) return all;
  const std::int64_t first = updates_ * place_.micros;
  const std::string shard = grid.tp > 1 ? fmt::format("/shard_{}", grid.tp_rank) : "";  // a shard of rows, or of heads
  const auto add = [&](const std::string& what, std::int64_t micro, DType dtype, void* data, std::size_t n) {
    StateField field;
    field.path = fmt::format("/run/pipeline/{}/micro_{}{}", what, micro - first, shard);
    field.dtype = dtype;
    field.shape = {grid.dp, static_cast<std::int64_t>(n)};
    field.row_begin = grid.dp_rank;
    field.row_end = grid.dp_rank + 1;
    field.data = data;
    field.on_device = !is_host<Exec>;
    all.push_back(std::move(field));
  };
  const auto add_activations = [&](const Link<Exec, T>& link, int boundary, int ahead) {
    for (std::int64_t micro = first; micro < in_flight_end(ahead); ++micro) {
      const Matrix<T, Exec> x = link.activation(micro);
      add(fmt::format("boundary_{}", boundary), micro, sizeof(T) == 2 ? DType::bf16 : DType::f32, x.data(), x.size());
    }
  };
  if (out_) add_activations(*out_, place_.number, place_.ahead);
  if (in_ && reading && in_->between_ranks()) add_activations(*in_, place_.number - 1, place_.ahead_before);
  if (place_.stash == ParallelOptions::Stash::saved)
    for (std::int64_t micro = first; micro < in_flight_end(place_.ahead); ++micro) {
      const Activations<Exec, T>& slot = slots_.of(micro);
      add(fmt::format("stage_{}", place_.number), micro, DType::u8, slot.data(), slot.bytes());
    }
  return all;
}

template <class Exec, class T>
void StageRun<Exec, T>::initialise(std::uint64_t seed) {
  stage_.initialise(seed);
  exchanges_.initialise(stage_.model().config().initializer_range, seed);
}

template <class Exec, class T>
void StageRun<Exec, T>::weights_changed() {
  head_of_ = -1;
  exchanges_.weights_changed();
}

template <class Exec, class T>
PassProbe<Exec, T>& StageRun<Exec, T>::probe() {
  if (!probe_)
    probe_ = std::make_unique<PassProbe<Exec, T>>(exec_, stage_.part(), plan_.layers, stage_.arena(), place_.number,
                                                  stage_.options().sequence);
  return *probe_;
}

template <class Exec, class T>
void StageRun<Exec, T>::look_for_nonfinite(bool on) {
  stage_.gather_sums(!on);  // each micro-batch shows its gradients
  if (on)
    probe().look(true);
  else
    probe_.reset();
}

template <class Exec, class T>
void StageRun<Exec, T>::spoil_next_forward() {
  probe().spoil_next_forward();
}

#define SESTINA_STAGE_RUN(Exec, T) template class StageRun<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGE_RUN)

}  // namespace sestina
