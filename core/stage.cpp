#include "core/stage.hpp"

#include <cstring>

#include "core/memory/pager.hpp"
#include "core/model/initialise.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/rotated/rotated_adam.hpp"

namespace sestina {
namespace {

// Returns the part of the arena's tensors that this rank owns.
template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> owned_tensors(const Arena<Exec, T>& arena, bool training) {
  std::vector<OwnedTensor<Exec, T>> owned;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorHolding& t = arena.layout().tensors[i];
    if (t.homed || t.owned_rows() == 0) continue;
    OwnedTensor<Exec, T> tensor{t.whole, {}, arena.master(i), arena.owned_compute(i)};
    if (training) tensor.gradient = arena.owned_gradient(i);
    tensor.coded = arena.owned_coded(i);
    if (t.owned_rows() != t.whole.rows) {
      tensor.row_begin = t.row_begin + t.owned_begin;
      tensor.row_end = t.row_begin + t.owned_end;
    }
    if (t.local.cols != t.whole.cols) {
      tensor.col_begin = t.col_begin;
      tensor.col_end = t.col_begin + t.local.cols;
      tensor.row_end = t.row_begin + t.owned_end;
    }
    tensor.sharded = t.sharded;
    tensor.saved = t.saved;
    tensor.counted = t.counted;
    owned.push_back(tensor);
  }
  return owned;
}

}  // namespace

PassOptions pass_options(const PlanInput& input) {
  PassOptions setting;
  setting.micro_batch = input.train.micro_batch > 0 ? input.train.micro_batch : input.train.global_batch;
  setting.sequence = input.sequence_length;
  setting.recompute = input.train.recompute;
  setting.deterministic = input.deterministic;
  setting.mask_documents = input.mask_documents;
  setting.micros = input.train.global_batch / setting.micro_batch;
  setting.graphs = input.train.graphs;
  setting.seed = input.seed;
  return setting;
}

template <class Exec, class T>
Stage<Exec, T>::Stage(const Exec& exec, const ModelPart& part, LayerRange range, const PassOptions& setting,
                      const RankLayout& layout, GroupOps<Exec>* group, bool training)
    : exec_(exec),
      model_(exec, part, range, setting.micro_batch, setting.sequence, setting.recompute, setting.deterministic, group),
      arena_(layout, training),
      weights_(weights_of<Exec, T>(part.config, range, arena_)),
      tensors_(owned_tensors(arena_, training)),
      options_(setting) {
  if (setting.graphs && !is_host<Exec>) graphs_ = std::make_unique<PassGraphs<>>(queue_of(exec_));
  if (!training) return;
  // Deterministic runs must not depend on which gradients are adjacent.
  gradients_ = gradients_of<Exec, T>(part.config, range, arena_, setting.deterministic);
  norm_ = std::make_unique<GradientNorm<Exec, T>>(arena_, setting.micros);
  if (setting.deterministic && setting.micros > 1 && !layout.gradients_in_turn)
    tree_ = std::make_unique<AccumulationTree<Exec, T>>(arena_, setting.micros);
  if (tree_) waiting_ = gradients_of<Exec, T>(part.config, range, arena_, true, tree_->place(0));
  if (!gathers_sums(setting.deterministic, setting.micros, layout.gradients_in_turn)) return;
  sums_ = decltype(sums_)("sestina::gradient_sums", size_of_sums(part.config.linear, arena_.specs()));
  gather_sums(true);
}

template <class Exec, class T>
void Stage<Exec, T>::gather_sums(bool on) {
  gathers_ = on && sums_.size() > 0;
  Acc<T>* next = sums_.data();
  for_each_formed(gradients_, [&](FormedWeight& gradient) {
    gradient.sums = gathers_ ? next : nullptr;
    next += size_of_sums(model_.config().linear, gradient.rows, gradient.cols);
  });
}

template <class Exec, class T>
void Stage<Exec, T>::make_optimizer(const ModelConfig& whole, const OptimizerOptions& options,
                                    const std::vector<MatrixItem<Exec>>& homed,
                                    const std::shared_ptr<RefreshWorkers>& workers) {
  optimizer_ = std::make_unique<Optimizer<Exec, T>>(exec_, tensors_, options, options_.deterministic,
                                                    matrix_index(tensor_specs(whole), options), homed,
                                                    norm_->nonfinite(), workers);
  if (whole.linear.merge_bound > 0) {
    early_merges_ = std::make_unique<LayerMerges>(static_cast<std::size_t>(whole.num_hidden_layers), 0);
    optimizer_->follow_merges(early_merges_.get());
  }
  if (graphs_ && !options.pages_any(MemorySpace::device))
    update_graph_ = std::make_unique<UpdateGraph<>>(queue_of(exec_));
  if (options.qk_clip > 0) qk_clip_ = std::make_unique<QkClip<Exec, T>>(exec_, whole, options, tensors_);
  if (whole.has_experts()) loads_ = std::make_unique<ExpertLoads>(range(), whole.num_experts);
  if (whole.router_bias_rate > 0) router_bias_ = std::make_unique<RouterBias<Exec, T>>(whole, arena_);
}

template <class Exec, class T>
void Stage<Exec, T>::initialise(std::uint64_t seed) {
  sestina::initialise<Exec, T>(exec_, arena_, model_.config(), seed);
  initialise_formed<Exec, T>(exec_, model_, arena_, weights_, seed);
}

template <class Exec, class T>
void Stage<Exec, T>::set_dense(const std::string& weight, const Acc<T>* host) {
  sestina::set_dense<Exec, T>(exec_, model_, arena_, find_formed<Exec, T>(weights_, weight), options_.seed, host);
}

template <class Exec, class T>
Activations<Exec, T> Stage<Exec, T>::make_slot(bool split) const {
  Activations<Exec, T> slot = model_.make_slot();
  if (split) slot.split_backward(part(), options_.micro_batch, options_.sequence);
  return slot;
}

template <class Exec, class T>
void Stage<Exec, T>::watch(Activations<Exec, T>& slot, std::int64_t minibatch) const {
  if (loads_)
    for (std::size_t i = 0; i < slot.layers.size(); ++i) slot.layers[i].load = loads_->load(i, minibatch);
  if (!qk_clip_) return;
  const int heads = static_cast<int>(model_.config().num_attention_heads);
  for (std::size_t i = 0; i < slot.layers.size(); ++i)
    slot.layers[i].largest_score =
        qk_clip_->scores(minibatch, range().begin + static_cast<int>(i), part().tp_rank * heads, heads);
}

template <class Exec, class T>
template <class Pass>
void Stage<Exec, T>::run_pass(const PassKey& key, BlockHooks& hooks, const Pass& pass) {
  if (graphs_ && !hooks.act())
    graphs_->run(key, pass);
  else
    pass();
}

template <class Exec, class T>
void Stage<Exec, T>::forward(const Weights<Exec, T>& weights, Activations<Exec, T>& slot, const TokenRows<Exec>& tokens,
                             Vector<const std::int32_t, Exec> first_key, BlockHooks& hooks) {
  const PassKey key{
      .weights = &weights, .slot = slot.data(), .tokens = tokens.token.data(), .masks_documents = first_key.size() > 0};
  slot.tokens = tokens;  // a pass that was recorded does not set them
  slot.first_key = first_key;
  run_pass(key, hooks, [&] { model_.forward(weights, slot, tokens, first_key, hooks); });
}

template <class Exec, class T>
void Stage<Exec, T>::backward(const Weights<Exec, T>& weights, Activations<Exec, T>& slot,
                              Vector<const std::int32_t, Exec> targets, double gradient_scale, int micro,
                              BlockHooks& hooks) {
  slot.gradient_scale = gradient_scale;
  if (!is_last()) return model_.backward(weights, slot, adds(micro), gradients_for(micro), hooks);
  model_.loss_and_backward(weights, slot, targets, gradient_scale, adds(micro), gradients_for(micro), hooks);
  model_.loss_sum(slot, norm_->note(micro));
}

template <class Exec, class T>
void Stage<Exec, T>::forward_and_backward(const Weights<Exec, T>& weights, Activations<Exec, T>& slot,
                                          const TokenSlot<Exec>& tokens, double gradient_scale, int micro,
                                          BlockHooks& hooks) {
  const PassKey key{.weights = &weights,
                    .slot = slot.data(),
                    .tokens = tokens.targets().data(),
                    .masks_documents = tokens.first_key().size() > 0,
                    .backward = true,
                    .adds = adds(micro),
                    .gradient_scale = gradient_scale};
  run_pass(key, hooks, [&] {
    model_.forward(weights, slot, tokens.inputs(), tokens.first_key(), hooks);
    model_.loss_and_backward(weights, slot, tokens.targets(), gradient_scale, adds(micro), gradients_for(micro), hooks);
  });
  model_.loss_sum(slot, norm_->note(micro));
}

template <class Exec, class T>
void Stage<Exec, T>::backward_input(const Weights<Exec, T>& weights, Activations<Exec, T>& slot,
                                    Vector<const std::int32_t, Exec> targets, double gradient_scale, int micro,
                                    BlockHooks& hooks) {
  model_.backward_input(weights, slot, targets, gradient_scale, adds(micro), gradients_for(micro), hooks);
  if (is_last()) model_.loss_sum(slot, norm_->note(micro));
}

template <class Exec, class T>
void Stage<Exec, T>::backward_weight(const Weights<Exec, T>& weights, Activations<Exec, T>& slot, int micro,
                                     BlockHooks& hooks) {
  model_.backward_weight(weights, slot, adds(micro), gradients_for(micro), hooks);
}

template <class Exec, class T>
void Stage<Exec, T>::bind_head(Matrix<const T, Exec> head, Matrix<Acc<T>, Exec> gradient) {
  weights_.head = head;
  gradients_.head = gradient;
  waiting_.head = gradient;
}

template <class Exec, class T>
void Stage<Exec, T>::begin_embedding_gradient(Matrix<const Acc<T>, Exec> of_head, int micro) const {
  const Vector<const Acc<T>, Exec> from(of_head.data(), of_head.size());
  const Gradients<Exec, T>& gradients = gradients_for(micro);
  const Vector<Acc<T>, Exec> to(gradients.embedding.data(), gradients.embedding.size());
  if (adds(micro))
    add_to<Exec, Acc<T>>(exec_, from, to);
  else
    convert<Exec, Acc<T>, Acc<T>>(exec_, from, to);
}

template <class Exec, class T>
void Stage<Exec, T>::scale_gradients(std::span<const double> by_tensor) const {
  for (std::size_t i = 0; i < arena_.size(); ++i) scale_gradient(i, by_tensor[i]);
}

template <class Exec, class T>
void Stage<Exec, T>::scale_gradient(std::size_t i, double factor) const {
  const TensorHolding& tensor = arena_.layout().tensors[i];
  if (factor == 1 || !tensor.whole.trainable || tensor.owned_rows() == 0) return;
  scale_values<Exec>(exec_, factor, arena_.owned_gradient(i));
}

template <class Exec, class T>
std::vector<StateField> Stage<Exec, T>::trained_fields() const {
  std::vector<StateField> fields;
  for (const auto& tensor : tensors_) {
    const std::string path = "/model/" + tensor.spec.name;
    fields.push_back(tensor.coded.rows > 0 ? coded_field_of(tensor, path)
                                           : field_of(tensor, path, tensor.master.data()));
  }
  return fields;
}

template <class Exec, class T>
std::vector<StateField> Stage<Exec, T>::merge_fields(bool saved) const {
  std::vector<StateField> fields;
  if (!early_merges_) return fields;
  for (int layer = range().begin; layer < range().end; ++layer) {
    StateField field;
    field.path = fmt::format("/optimizer/model.layers.{}/early_merge", layer);
    field.dtype = DType::i64;
    field.shape = {1};
    field.row_end = 1;
    field.data = &early_merges_->at(static_cast<std::size_t>(layer));
    field.saved = saved;
    field.optional = true;  // a checkpoint of before had no early merges
    fields.push_back(std::move(field));
  }
  return fields;
}

template <class Exec, class T>
std::vector<StateField> Stage<Exec, T>::model_fields() const {
  std::vector<StateField> fields = trained_fields();
  for (StateField& field : frozen_fields()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::vector<StateField> Stage<Exec, T>::frozen_fields() const {
  std::vector<StateField> fields;
  for (std::size_t i = 0; i < arena_.size(); ++i)
    if (!arena_.specs()[i].trainable) fields.push_back(frozen_field(i));
  return fields;
}

template <class Exec, class T>
std::vector<StateField> Stage<Exec, T>::computed_fields() const {
  std::vector<StateField> fields;
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const TensorHolding& holding = arena_.layout().tensors[i];
    const TensorSpec& spec = holding.local;
    if (!spec.trainable) continue;
    StateField field;
    field.path = "/weights/" + holding.whole.name;
    const std::size_t row = arena_.row_bytes(i),
                      element = spec.is_coded() ? 1 : row / static_cast<std::size_t>(spec.cols);
    field.dtype = element == 1 ? DType::u8 : element == 2 ? DType::bf16 : DType::f32;
    field.shape = {holding.whole.rows, static_cast<std::int64_t>(row / element)};
    field.row_begin = holding.row_begin;
    field.row_end = holding.row_begin + spec.rows;
    if (spec.cols != holding.whole.cols) {
      field.shape[1] = holding.whole.cols;
      field.col_begin = holding.col_begin;
      field.col_end = holding.col_begin + spec.cols;
    }
    field.data = arena_.computed_with(i);
    field.on_device = !is_host<Exec>;
    fields.push_back(field);
  }
  return fields;
}

template <class Exec, class T>
StateField Stage<Exec, T>::frozen_field(std::size_t tensor) const {
  const TensorHolding& holding = arena_.layout().tensors[tensor];
  const TensorSpec& spec = holding.whole;
  StateField field;
  field.path = "/model/" + spec.name;
  field.dtype = kept_as(spec, sizeof(T), sizeof(Acc<T>));
  field.shape = spec.is_vector() ? std::vector{spec.rows} : std::vector{spec.rows, spec.kept_cols()};
  field.row_begin = holding.row_begin;
  field.row_end = holding.row_begin + holding.local.rows;
  if (holding.local.cols != spec.cols) {
    field.col_begin = holding.col_begin * spec.kept_cols() / spec.cols;
    field.col_end = field.col_begin + holding.local.kept_cols();
  }
  field.optional = spec.may_be_absent;
  field.of_places = spec.stored == Stored::index;
  field.data = arena_.frozen(tensor);
  field.on_device = !is_host<Exec>;
  field.saved = holding.saved;
  return field;
}

template <class Exec>
void copy_to_host(const Exec& exec, const StateField& field, void* host) {
  if (!field.on_device) exec.fence("copy_to_host");
  for_each_block(field, [&](const StateField& part, std::size_t begin) {
    const Pin pin(part.pager, part.data, Pager::Need::reading);
    const std::size_t n = part.bytes();
    const auto* const from = static_cast<const std::byte*>(part.data);
    std::byte* const to = static_cast<std::byte*>(host) + begin;
    if (field.on_device)
      Kokkos::deep_copy(exec, Vector<std::byte, Host>(to, n), Vector<const std::byte, Exec>(from, n));
    else
      std::memcpy(to, from, n);
  });
  if (field.on_device) exec.fence();
}

template <class Exec>
void copy_from_host(const Exec& exec, const StateField& field, const void* host) {
  const std::size_t n = field.bytes();
  if (!field.on_device) exec.fence("copy_from_host");
  const auto to = write_to(field, Pager::Need::room);
  if (!field.on_device) {
    std::memcpy(to.view(), host, n);
    return;
  }
  Kokkos::deep_copy(exec, Vector<std::byte, Exec>(to.view(), n),
                    Vector<const std::byte, Host>(static_cast<const std::byte*>(host), n));
  exec.fence();
}

#define SESTINA_STAGE(Exec, T) template class Stage<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_STAGE)
#define SESTINA_FIELD_COPY(Exec)                                           \
  template void copy_to_host<Exec>(const Exec&, const StateField&, void*); \
  template void copy_from_host<Exec>(const Exec&, const StateField&, const void*);
SESTINA_INSTANTIATE_SPACES(SESTINA_FIELD_COPY)

}  // namespace sestina
