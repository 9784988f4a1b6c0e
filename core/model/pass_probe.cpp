#include "core/model/pass_probe.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/layout/rank_layout.hpp"

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

}  // namespace

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
void PassProbe<Exec, T>::begin(const Activations<Exec, T>& slot, int micro) {
  slot_ = &slot;
  micro_ = micro;
  place_ = 0;
}

template <class Exec, class T>
std::string PassProbe<Exec, T>::layer_name(int i, const char* module) const {
  return fmt::format("model.layers.{}{}", range_.begin + i, module);
}

// Rows of the residual stream are those of this rank where sequence parallelism splits them.
template <class Exec, class T>
int PassProbe<Exec, T>::sequence_of(std::int64_t row, std::int64_t rows) const {
  const auto all = static_cast<std::int64_t>(slot_->tokens.size());
  const std::int64_t first = rows == all ? 0 : first_row_of(all, part_.tp, part_.tp_rank);
  return static_cast<int>((first + row) / sequence_length_);
}

template <class Exec, class T>
void PassProbe<Exec, T>::look_at(PassKind pass, const Matrix<const T, Exec>& m, const std::string& layer,
                                 const char* what) {
  ++place_;
  if (found_ || m.size() == 0) return;
  const std::int64_t first = first_nonfinite_element<Exec, T>(exec_, m);
  const auto cols = static_cast<std::int64_t>(m.extent(1)), rows = static_cast<std::int64_t>(m.extent(0));
  if (first == rows * cols) return;
  found_ = FirstBad{
      pass, stage_, layer, what, micro_, sequence_of(first / cols, rows), place_, value_at<Exec, T>(exec_, m, first)};
}

template <class Exec, class T>
void PassProbe<Exec, T>::after_forward(int block) {
  const int i = block - 1 - range_.begin, layers = range_.end - range_.begin;
  if (spoils_ && i == layers / 2) {
    put_nan<Exec, T>(exec_, slot_->layers[static_cast<std::size_t>(i)].x2);
    spoils_ = false;
  }
  if (!looks_) return;
  if (i == layers) return look_at_end();
  if (block > 0) return look_at_layer(i);
  look_at(PassKind::forward, slot_->embedded, "model.embed_tokens", "output");
  look_at(PassKind::forward, slot_->layers[0].x, "model.embed_tokens", slot_->embedded.size() > 0 ? "norm" : "output");
}

// Looks at what the layer computed, in the order in which it did. The output of its second half is the input of the
// next layer.
template <class Exec, class T>
void PassProbe<Exec, T>::look_at_layer(int i) {
  const LayerActivations<Exec, T>& a = slot_->layers[static_cast<std::size_t>(i)];
  constexpr PassKind forward = PassKind::forward;
  const std::string attention = layer_name(i, ".self_attn"), mlp = layer_name(i, ".mlp");
  if (i > 0)
    look_at(forward, a.x, layer_name(i - 1, ".mlp"), "output");
  else if (!is_first_stage())
    look_at(forward, a.x, layer_name(0), "input from the stage before");
  if (a.h.data() != a.x.data()) look_at(forward, a.h, layer_name(i, ".input_layernorm"), "output");
  look_at(forward, a.qkv, attention, "queries, keys and values");
  look_at(forward, a.qk, attention, "queries and keys at their positions");
  look_at(forward, a.attended, attention, "input of o_proj");
  look_at(forward, a.projected, attention, "output of o_proj");
  look_at(forward, a.x2, attention, "output");
  if (a.h2.data() != a.x2.data()) look_at(forward, a.h2, layer_name(i, ".post_attention_layernorm"), "output");
  look_at(forward, a.up, mlp, "output of up_proj");
  look_at(forward, a.down, mlp, "output of down_proj");
}

template <class Exec, class T>
void PassProbe<Exec, T>::look_at_end() {
  look_at(PassKind::forward, slot_->output, layer_name(range_.end - range_.begin - 1, ".mlp"), "output");
  if (is_last_stage()) look_at(PassKind::forward, slot_->h, "model.norm", "output");
}

template <class Exec, class T>
void PassProbe<Exec, T>::after_backward(int block, bool input, bool weights) {
  if (!looks_ || found_) return;
  const int i = block - 1 - range_.begin;
  const bool head = is_last_stage() && block == range_.end + 1;
  if (head) {
    const auto n = static_cast<std::int64_t>(slot_->token_loss.size());
    const Matrix<const Acc<T>, Exec> losses(slot_->token_loss.data(), static_cast<std::size_t>(n), 1);
    const std::int64_t first = first_nonfinite_element<Exec, Acc<T>>(exec_, losses);
    if (first < n)
      found_ = FirstBad{PassKind::loss, stage_,
                        "lm_head",      "loss",
                        micro_,         sequence_of(first, n),
                        place_,         value_at<Exec, Acc<T>>(exec_, losses, first)};
  }
  if (input && block > 0)
    look_at(PassKind::backward, slot_->gradient, head ? "model.norm" : layer_name(i), "gradient of the input");
  if (weights) look_at_weights(block);
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
    const std::string layer = spec.layer >= 0 ? layer_name(spec.layer - range_.begin)
                              : block == 0    ? "model.embed_tokens"
                                              : "lm_head";
    found_ = FirstBad{PassKind::backward,
                      stage_,
                      layer,
                      "gradient of " + spec.name,
                      micro_,
                      -1,
                      ++place_,
                      value_at<Exec, Acc<T>>(exec_, m, first)};
  }
}

#define SESTINA_PASS_PROBE(Exec, T) template class PassProbe<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_PASS_PROBE)

}  // namespace sestina
