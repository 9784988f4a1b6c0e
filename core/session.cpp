#include "core/session.hpp"

#include <algorithm>
#include <cstring>

#include "core/model/initialise.hpp"

namespace sestina {
namespace {

// What this rank owns of the arena's tensors.
template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> owned_tensors(const Arena<Exec, T>& arena, bool training) {
  std::vector<OwnedTensor<Exec, T>> owned;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorHolding& t = arena.layout().tensors[i];
    if (t.homed || t.owned_rows() == 0) continue;
    OwnedTensor<Exec, T> tensor{t.whole, {}, arena.master(i), arena.owned_compute(i)};
    if (training) tensor.gradient = arena.owned_gradient(i);
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

SessionSetting session_setting(const Options& options) {
  SessionSetting setting;
  setting.micro_batch = options.train.micro_batch > 0 ? options.train.micro_batch : options.train.global_batch;
  setting.sequence = options.data.sequence_length;
  setting.recompute = options.train.recompute;
  setting.deterministic = options.run.deterministic;
  setting.mask_documents = options.data.mask_documents;
  setting.micros = options.train.global_batch / setting.micro_batch;
  setting.seed = options.run.seed;
  return setting;
}

template <class Exec, class T>
Session<Exec, T>::Session(const Exec& exec, const ModelPart& part, const SessionSetting& setting,
                          const RankLayout& layout, GroupOps<Exec>* group, bool training)
    : exec_(exec),
      setting_(setting),
      model_(exec, part, sestina::all_layers(part.config), setting.micro_batch, setting.sequence, setting.recompute,
             setting.deterministic, group),
      arena_(layout, training),
      slot_(model_.make_slot()),
      weights_(weights_of<Exec, T>(part.config, all_layers(), arena_)),
      tensors_(owned_tensors(arena_, training)),
      first_head_(part.tp_rank * static_cast<int>(part.config.num_attention_heads)),
      batch_("sestina::batch", 3,
             static_cast<std::size_t>(setting.micro_batch) * static_cast<std::size_t>(setting.sequence)) {
  if constexpr (!is_host<Exec>)
    for (int i = 0; i < std::max(setting.micros, 1); ++i)
      host_batches_.emplace_back("sestina::host_batch", batch_.extent(0), batch_.extent(1));
  if (!training) return;
  // Deterministic runs must not depend on which gradients lie side by side.
  gradients_ = gradients_of<Exec, T>(part.config, all_layers(), arena_, setting.deterministic);
  norm_ = std::make_unique<GradientNorm<Exec, T>>(arena_, setting.micros);
  if (setting.deterministic && setting.micros > 1)
    tree_ = std::make_unique<AccumulationTree<Exec, T>>(arena_, setting.micros);
}

template <class Exec, class T>
Session<Exec, T>::Session(const Exec& exec, const ModelPart& part, const SessionSetting& setting,
                          const RankLayout& layout, GroupOps<Exec>* group)
    : Session(exec, part, setting, layout, group, true) {}

template <class Exec, class T>
Session<Exec, T>::Session(const Exec& exec, const ModelConfig& config, const SessionSetting& setting,
                          const OptimizerOptions* optimizer)
    : Session(exec, model_part(config, 1, 0), setting, lone_layout(tensor_specs(config)), nullptr,
              optimizer != nullptr) {
  if (optimizer != nullptr) make_optimizer(config, *optimizer);
}

template <class Exec, class T>
void Session<Exec, T>::make_optimizer(const ModelConfig& whole, const OptimizerOptions& options,
                                      const std::vector<MatrixItem<Exec>>& homed) {
  optimizer_ =
      std::make_unique<Optimizer<Exec, T>>(exec_, tensors_, options, setting_.deterministic,
                                           matrix_index(tensor_specs(whole), options), homed, norm_->nonfinite());
  if (options.qk_clip <= 0) return;
  qk_clip_ = std::make_unique<QkClip<Exec, T>>(exec_, whole, options, tensors_);
  for (std::size_t layer = 0; layer < slot_.layers.size(); ++layer)
    slot_.layers[layer].largest_score =
        qk_clip_->scores(static_cast<int>(layer), first_head_, static_cast<int>(config().num_attention_heads));
}

template <class Exec, class T>
void Session<Exec, T>::initialise(std::uint64_t seed) {
  sestina::initialise<Exec, T>(exec_, arena_, config(), seed);
  initialise_formed<Exec, T>(exec_, model_, weights_, seed);
}

template <class Exec, class T>
void Session<Exec, T>::set_dense(const std::string& weight, const Acc<T>* host) {
  sestina::set_dense<Exec, T>(exec_, model_, find_formed<Exec, T>(weights_, weight), setting_.seed, host);
}

template <class Exec, class T>
void Session<Exec, T>::get_dense(const std::string& weight, Acc<T>* host) {
  sestina::get_dense<Exec, T>(exec_, model_, find_formed<Exec, T>(weights_, weight), host);
}

template <class Exec, class T>
void Session<Exec, T>::MicroHooks::before_forward(int block) {
  if (session.outer_hooks_) session.outer_hooks_->before_forward(block);
}

template <class Exec, class T>
void Session<Exec, T>::MicroHooks::before_backward(int block) {
  if (session.outer_hooks_) session.outer_hooks_->before_backward(block);
}

template <class Exec, class T>
void Session<Exec, T>::MicroHooks::after_backward(int block) {
  if (session.tree_) session.tree_->add(session.exec_, block, micro);
  if (session.outer_hooks_ && micro + 1 == session.setting_.micros) session.outer_hooks_->after_backward(block);
}

template <class Exec, class T>
void Session<Exec, T>::load(const std::int32_t* tokens, const std::int32_t* first_key) {
  const auto B = static_cast<std::size_t>(setting_.micro_batch), length = static_cast<std::size_t>(setting_.sequence);
  std::int32_t* host = batch_.data();
  if constexpr (!is_host<Exec>) {
    loaded_ = (loaded_ + 1) % host_batches_.size();
    host = host_batches_[loaded_].data();
  }
  const std::size_t n = batch_.extent(1);
  for (std::size_t b = 0; b < B; ++b)
    for (std::size_t t = 0; t < length; ++t) {
      const std::int32_t* window = tokens + b * (length + 1) + t;
      host[b * length + t] = std::max(window[0], 0);
      host[n + b * length + t] = window[1];
      if (first_key != nullptr) host[2 * n + b * length + t] = first_key[b * length + t];
    }
  masked_ = first_key != nullptr;
  if constexpr (!is_host<Exec>) Kokkos::deep_copy(exec_, batch_, host_batches_[loaded_]);
}

template <class Exec, class T>
void Session<Exec, T>::forward() {
  const Vector<const std::int32_t, Exec> none(nullptr, 0);
  model_.forward(weights_, slot_, batch_row(0), masked_ ? batch_row(2) : none, hooks_);
}

template <class Exec, class T>
double Session<Exec, T>::forward_backward(double gradient_scale, int micro) {
  backward_pass(gradient_scale, micro);
  return model_.loss_sum(slot_);
}

template <class Exec, class T>
void Session<Exec, T>::accumulate(double gradient_scale, int micro) {
  backward_pass(gradient_scale, micro);
  model_.loss_sum(slot_, norm_->note(micro));
}

template <class Exec, class T>
void Session<Exec, T>::backward_pass(double gradient_scale, int micro) {
  if (qk_clip_ && micro == 0) qk_clip_->start_step(exec_);
  forward();
  hooks_.micro = micro;
  const bool add = micro > 0 && !tree_;
  model_.loss_and_backward(weights_, slot_, batch_row(1), gradient_scale, add, gradients_, hooks_);
}

template <class Exec, class T>
double Session<Exec, T>::loss() {
  forward();
  model_.loss_only(weights_, slot_, batch_row(1));
  return model_.loss_sum(slot_);
}

template <class Exec, class T>
void Session<Exec, T>::token_losses(Acc<T>* host) {
  Kokkos::deep_copy(exec_, Vector<Acc<T>, Host>(host, slot_.token_loss.size()), slot_.token_loss);
  exec_.fence("token_losses");
}

template <class Exec, class T>
void Session<Exec, T>::logits(int row, float* host) {
  const auto n = static_cast<std::size_t>(config().vocab_size);
  const Kokkos::View<T*, typename Exec::memory_space> row_logits("sestina::row_logits", n);
  const Kokkos::View<float*, typename Exec::memory_space> wide("sestina::row_logits_f32", n);
  model_.logits(weights_, slot_, row, Matrix<T, Exec>(row_logits.data(), 1, n));
  convert<Exec, T, float>(exec_, row_logits, wide);
  Kokkos::deep_copy(exec_, Vector<float, Host>(host, n), wide);
  exec_.fence();
}

template <class Exec, class T>
double Session<Exec, T>::gradient_norm() {
  norm_->squares(exec_);
  norm_->by_tensor();
  return norm_->norm();
}

template <class Exec, class T>
void Session<Exec, T>::update(std::int64_t t, double factor, double gradient_scale) {
  optimizer_->step(exec_, t, factor, gradient_scale);
  if (!qk_clip_) return;
  qk_clip_->fetch(exec_);
  qk_clip_->apply(exec_);
}

template <class Exec, class T>
std::vector<StateField> Session<Exec, T>::model_fields() const {
  std::vector<StateField> fields;
  for (const auto& tensor : tensors_)
    fields.push_back(field_of(tensor, "/model/" + tensor.spec.name, tensor.master.data()));
  for (std::size_t i = 0; i < arena_.size(); ++i)
    if (!arena_.specs()[i].trainable) fields.push_back(frozen_field(i));
  return fields;
}

template <class Exec, class T>
StateField Session<Exec, T>::frozen_field(std::size_t tensor) const {
  const TensorSpec& spec = arena_.specs()[tensor];
  constexpr auto real = [](std::size_t width) {
    return width == 8 ? DType::f64 : width == 4 ? DType::f32 : DType::bf16;
  };
  StateField field;
  field.path = "/model/" + spec.name;
  field.dtype = spec.stored == Stored::index  ? DType::i32
                : spec.stored == Stored::code ? DType::u8
                                              : real(spec.stored == Stored::sum ? sizeof(Acc<T>) : sizeof(T));
  field.shape = spec.is_vector() ? std::vector{spec.rows} : std::vector{spec.rows, spec.cols};
  field.row_end = spec.rows;
  field.data = arena_.frozen(tensor);
  field.on_device = !is_host<Exec>;
  field.saved = arena_.layout().tensors[tensor].saved;
  return field;
}

template <class Exec, class T>
std::vector<StateField> Session<Exec, T>::optimizer_fields() const {
  return optimizer_ ? optimizer_->state() : std::vector<StateField>{};
}

template <class Exec, class T>
std::vector<StateField> Session<Exec, T>::fields() const {
  std::vector<StateField> all = model_fields();
  const std::vector<StateField> state = optimizer_fields();
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

template <class Exec, class T>
void Session<Exec, T>::copy_to_host(const StateField& field, void* host) const {
  const std::size_t n = field.bytes();
  if (!field.on_device) {
    exec_.fence("copy_to_host");
    std::memcpy(host, field.data, n);
    return;
  }
  const Vector<const std::byte, Exec> from(static_cast<const std::byte*>(field.data), n);
  Kokkos::deep_copy(exec_, Vector<std::byte, Host>(static_cast<std::byte*>(host), n), from);
  exec_.fence();
}

template <class Exec, class T>
void Session<Exec, T>::copy_from_host(const StateField& field, const void* host) const {
  const std::size_t n = field.bytes();
  if (!field.on_device) {
    exec_.fence("copy_from_host");
    std::memcpy(field.data, host, n);
    return;
  }
  const Vector<std::byte, Exec> to(static_cast<std::byte*>(field.data), n);
  Kokkos::deep_copy(exec_, to, Vector<const std::byte, Host>(static_cast<const std::byte*>(host), n));
  exec_.fence();
}

template <class Exec, class T>
void Session<Exec, T>::weights_changed() {
  arena_.round_weights(exec_);
}

#define SESTINA_SESSION(Exec, T) template class Session<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_SESSION)

}  // namespace sestina
