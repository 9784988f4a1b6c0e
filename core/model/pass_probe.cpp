#include "core/model/pass_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/layout/rank_layout.hpp"
#include "kernels/blas/bits.hpp"

namespace sestina {
namespace {

// Returns the index of the first element, row by row, that is not finite; rows * cols where there is none. Fences.
template <class Exec, class T>
std::int64_t first_nonfinite_element(const Exec& exec, const Matrix<const T, Exec>& m) {
  const auto cols = static_cast<std::int64_t>(m.extent(1)), n = static_cast<std::int64_t>(m.extent(0)) * cols;
  std::int64_t first = n;
  Kokkos::parallel_reduce(
      "first_nonfinite", Kokkos::RangePolicy<Exec, Kokkos::IndexType<std::int64_t>>(exec, 0, n),
      KOKKOS_LAMBDA(const std::int64_t i, std::int64_t& least) {
        const T value = m(i / cols, i % cols);
        if (value - value != 0 && i < least) least = i;  // inf - inf is no number
      },
      Kokkos::Min<std::int64_t>(first));
  exec.fence("first_nonfinite");
  return 0 <= first && first < n ? first : n;  // of an empty range it is the largest integer
}

template <class Exec, class T>
double value_at(const Exec& exec, const Matrix<const T, Exec>& m, std::int64_t i) {
  const auto cols = static_cast<std::int64_t>(m.extent(1));
  const std::size_t place = static_cast<std::size_t>(i / cols) * m.stride(0) + static_cast<std::size_t>(i % cols);
  T value{};
  Kokkos::deep_copy(exec, Vector<T, Host>(&value, 1), Vector<const T, Exec>(m.data() + place, 1));
  exec.fence("value_at");
  return static_cast<double>(value);
}

template <class Exec, class T>
void put_nan(const Exec& exec, const Matrix<T, Exec>& m) {
  if (m.size() == 0) return;
  Kokkos::parallel_for(
      "put_nan", Kokkos::RangePolicy<Exec>(exec, 0, 1),
      KOKKOS_LAMBDA(int) { m(0, 0) = static_cast<T>(Kokkos::Experimental::quiet_NaN_v<float>); });
}

std::string name_of_layer(int layer, const char* module = "") {
  return fmt::format("model.layers.{}{}", layer, module);
}

bool has_last_layer(const ModelPart& part, LayerRange range) {
  return range.end == static_cast<int>(part.config.num_hidden_layers);
}

// Returns what layer number i of the stage computed, whose name has the number `layer`.
template <class Exec, class T>
std::vector<PassTensor<Exec, T>> tensors_of_layer(const Activations<Exec, T>& slot, std::size_t i, int layer) {
  const LayerActivations<Exec, T>& a = slot.layers[i];
  constexpr PassKind forward = PassKind::forward;
  const std::string attention = name_of_layer(layer, ".self_attn"), mlp = name_of_layer(layer, ".mlp");
  std::vector<PassTensor<Exec, T>> all;
  if (i > 0)
    all.push_back({forward, name_of_layer(layer - 1, ".mlp"), "output", a.x});
  else if (layer > 0)
    all.push_back({forward, name_of_layer(layer), "input from the stage before", a.x});
  if (a.h.data() != a.x.data()) all.push_back({forward, name_of_layer(layer, ".input_layernorm"), "output", a.h});
  all.push_back({forward, attention, "queries, keys and values", a.qkv});
  all.push_back({forward, attention, "queries and keys at their positions", a.qk});
  all.push_back({forward, attention, "input of o_proj", a.attended});
  all.push_back({forward, attention, "output of o_proj", a.projected});
  all.push_back({forward, attention, "output", a.x2});
  if (a.h2.data() != a.x2.data())
    all.push_back({forward, name_of_layer(layer, ".post_attention_layernorm"), "output", a.h2});
  all.push_back({forward, mlp, "output of up_proj", a.up});
  all.push_back({forward, mlp, "output of down_proj", a.down});
  return all;
}

}  // namespace

template <class Exec, class T>
std::vector<PassTensor<Exec, T>> forward_tensors(const Activations<Exec, T>& slot, const ModelPart& part,
                                                 LayerRange range, int block) {
  constexpr PassKind forward = PassKind::forward;
  const int i = block - 1 - range.begin, layers = range.end - range.begin;
  if (block == 0)
    return {{forward, "model.embed_tokens", "output", slot.embedded},
            {forward, "model.embed_tokens", slot.embedded.size() > 0 ? "norm" : "output", slot.layers[0].x}};
  if (i < layers) return tensors_of_layer<Exec, T>(slot, static_cast<std::size_t>(i), range.begin + i);
  std::vector<PassTensor<Exec, T>> all = {{forward, name_of_layer(range.end - 1, ".mlp"), "output", slot.output}};
  if (has_last_layer(part, range)) all.push_back({forward, "model.norm", "output", slot.h});
  return all;
}

template <class Exec, class T>
PassTensor<Exec, T> backward_tensor(const Activations<Exec, T>& slot, const ModelPart& part, LayerRange range,
                                    int block) {
  const bool head = has_last_layer(part, range) && block == range.end + 1;
  return {PassKind::backward, head ? "model.norm" : name_of_layer(block - 1), "gradient of the input", slot.gradient};
}

std::string layer_of_block(int block, std::int64_t layers) {
  return block == 0 ? "model.embed_tokens" : block > layers ? "lm_head" : name_of_layer(block - 1);
}

template <class Exec, class T>
PassProbe<Exec, T>::PassProbe(const Exec& exec, const ModelPart& part, LayerRange range, const Arena<Exec, T>& arena,
                              int stage, int sequence_length)
    : exec_(exec), part_(part), range_(range), arena_(arena), stage_(stage), sequence_length_(sequence_length) {}

template <class Exec, class T>
void PassProbe<Exec, T>::look(bool on) {
  looks_ = on;
  if (on) found_.reset();
}

template <class Exec, class T>
void PassProbe<Exec, T>::keep_digests(bool on) {
  keeps_ = on;
  if (on) digests_.clear();
}

template <class Exec, class T>
void PassProbe<Exec, T>::begin(const Activations<Exec, T>& slot, std::optional<int> micro) {
  slot_ = &slot;
  micro_ = micro;
  place_ = 0;
}

// Returns which row of all tokens is the first of so many here. Rows of the residual stream are those of this rank
// where sequence parallelism splits them.
template <class Exec, class T>
std::int64_t PassProbe<Exec, T>::first_row(std::int64_t rows) const {
  const auto all = static_cast<std::int64_t>(slot_->tokens.token.size());
  return rows == all ? 0 : first_row_of(all, part_.tp, part_.tp_rank);
}

template <class Exec, class T>
int PassProbe<Exec, T>::sequence_of(std::int64_t row, std::int64_t rows) const {
  return static_cast<int>((first_row(rows) + row) / sequence_length_);
}

template <class Exec, class T>
template <class Value>
void PassProbe<Exec, T>::keep_digest(PassDigest digest, const Matrix<const Value, Exec>& m) {
  const auto all = static_cast<std::int64_t>(slot_->tokens.token.size()), rows = static_cast<std::int64_t>(m.extent(0));
  const auto sequences = static_cast<std::size_t>(all / sequence_length_);
  if (sums_.size() != sequences) sums_ = decltype(sums_)("sestina::digests", sequences);
  const std::int64_t first = first_row(rows);
  constexpr std::size_t width = std::min(sizeof(Value), sizeof(std::uint32_t));
  const std::size_t stride = m.stride(0) * sizeof(Value);
  for (std::size_t s = 0; s < sequences; ++s) {
    const auto begin = static_cast<std::int64_t>(s) * sequence_length_ - first;
    const std::int64_t from = std::clamp<std::int64_t>(begin, 0, rows);
    const std::int64_t to = std::clamp<std::int64_t>(begin + sequence_length_, 0, rows);
    digest_rows<Exec>(exec_, m.data() + static_cast<std::size_t>(from) * m.stride(0),
                      static_cast<std::size_t>(to - from), m.extent(1) * sizeof(Value), stride, width,
                      Vector<std::uint64_t, Exec>(sums_.data() + s, 1));
  }
  digest.stage = stage_;
  digest.by_sequence = true;
  digest.digests.resize(sequences);
  Kokkos::deep_copy(exec_, Vector<std::uint64_t, Host>(digest.digests.data(), sequences), sums_);
  exec_.fence("digests");
  digests_.push_back(std::move(digest));
}

template <class Exec, class T>
void PassProbe<Exec, T>::look_at(const PassTensor<Exec, T>& tensor, int block) {
  ++place_;
  const Matrix<const T, Exec>& m = tensor.rows;
  if (m.size() == 0) return;
  if (keeps_) keep_digest<T>({tensor.pass, stage_, tensor.layer, tensor.name, block, true, {}}, m);
  if (!looks_ || found_) return;
  const std::int64_t first = first_nonfinite_element<Exec, T>(exec_, m);
  const auto cols = static_cast<std::int64_t>(m.extent(1)), rows = static_cast<std::int64_t>(m.extent(0));
  if (first == rows * cols) return;
  found_ = FirstBad{tensor.pass,
                    stage_,
                    tensor.layer,
                    tensor.name,
                    micro_.value_or(0),
                    sequence_of(first / cols, rows),
                    place_,
                    value_at<Exec, T>(exec_, m, first)};
}

// What the layer has computed stays; the layers after it and the backward pass read the word. Rows of the stream may be
// padded, so it is one of a row.
template <class Exec, class T>
void PassProbe<Exec, T>::flip_stream(std::size_t layer) {
  const Matrix<T, Exec> m = slot_->layers[layer].x2;
  if (m.size() == 0) return;
  T* const row = m.data() + mixed(flip_->place) % m.extent(0) * m.stride(0);
  constexpr std::size_t width = std::min(sizeof(T), sizeof(std::uint32_t));
  flip_bits<Exec>(exec_, row, m.extent(1) * sizeof(T), width, flip_->place, flip_->bits);
}

template <class Exec, class T>
void PassProbe<Exec, T>::after_forward(int block) {
  const int i = block - 1 - range_.begin, layers = range_.end - range_.begin;
  if (spoils_ && i == layers / 2) {
    put_nan<Exec, T>(exec_, slot_->layers[static_cast<std::size_t>(i)].x2);
    spoils_ = false;
  }
  const bool flips = flip_ && micro_.value_or(flip_->micro) == flip_->micro;
  if (flips && 0 <= i && i < layers && flip_->tensor % static_cast<std::uint64_t>(layers) == static_cast<unsigned>(i))
    flip_stream(static_cast<std::size_t>(i));
  if (!looks_ && !keeps_) return;
  for (const PassTensor<Exec, T>& tensor : forward_tensors<Exec, T>(*slot_, part_, range_, block))
    look_at(tensor, block);
}

template <class Exec, class T>
void PassProbe<Exec, T>::look_at_losses(int block) {
  const auto n = static_cast<std::int64_t>(slot_->token_loss.size());
  const Matrix<const Acc<T>, Exec> losses(slot_->token_loss.data(), static_cast<std::size_t>(n), 1);
  if (keeps_) keep_digest<Acc<T>>({PassKind::loss, stage_, "lm_head", "loss", block, true, {}}, losses);
  if (!looks_) return;
  const std::int64_t first = first_nonfinite_element<Exec, Acc<T>>(exec_, losses);
  if (first < n)
    found_ = FirstBad{PassKind::loss,
                      stage_,
                      "lm_head",
                      "loss",
                      micro_.value_or(0),
                      sequence_of(first, n),
                      place_,
                      value_at<Exec, Acc<T>>(exec_, losses, first)};
}

template <class Exec, class T>
void PassProbe<Exec, T>::after_backward(int block, bool input, bool weights) {
  if ((!looks_ || found_) && !keeps_) return;
  const bool head = is_last_stage() && block == range_.end + 1;
  if (head) look_at_losses(block);
  if (input && block > 0) look_at(backward_tensor<Exec, T>(*slot_, part_, range_, block), block);
  if (weights && looks_) look_at_weights(block);
}

template <class Exec, class T>
void PassProbe<Exec, T>::look_at_weights(int block) {
  for (std::size_t tensor = 0; tensor < arena_.size() && !found_; ++tensor) {
    const TensorSpec& spec = arena_.specs()[tensor];
    if (spec.block != block || !spec.trainable) continue;
    const Vector<Acc<T>, Exec> gradient = arena_.gradient(tensor);
    const Matrix<const Acc<T>, Exec> m(gradient.data(), 1, gradient.size());
    const std::int64_t first = first_nonfinite_element<Exec, Acc<T>>(exec_, m);
    if (first == static_cast<std::int64_t>(gradient.size())) continue;
    found_ = FirstBad{PassKind::backward,
                      stage_,
                      layer_of_block(block, part_.config.num_hidden_layers),
                      "gradient of " + spec.name,
                      micro_.value_or(0),
                      -1,
                      ++place_,
                      value_at<Exec, Acc<T>>(exec_, m, first)};
  }
}

#define SESTINA_PASS_TENSORS(Exec, T)                                                                               \
  template std::vector<PassTensor<Exec, T>> forward_tensors<Exec, T>(const Activations<Exec, T>&, const ModelPart&, \
                                                                     LayerRange, int);                              \
  template PassTensor<Exec, T> backward_tensor<Exec, T>(const Activations<Exec, T>&, const ModelPart&, LayerRange, int);
SESTINA_INSTANTIATE_COMPUTE(SESTINA_PASS_TENSORS)

#define SESTINA_PASS_PROBE(Exec, T) template class PassProbe<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_PASS_PROBE)

}  // namespace sestina
