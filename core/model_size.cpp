#include "core/model_size.hpp"

#include <algorithm>

namespace sestina {
namespace {

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::size_t sum_bytes(std::initializer_list<std::size_t> elements, std::size_t width, std::size_t alignment) {
  std::size_t total = 0;
  for (const std::size_t n : elements) total += rounded(n * width, alignment);
  return total;
}

// Bytes of one layer's activations without its input.
std::size_t inner_bytes(const LayerSizes& s, StorageWidth w) {
  return sum_bytes({s.h, s.qkv, s.qk, s.attended, s.projected, s.x2, s.h2, s.up, s.down}, w.compute, slot_alignment) +
         sum_bytes({s.lse, s.inverse, s.mean, s.inverse, s.mean, s.inverse_q, s.inverse_k}, w.accumulate,
                   slot_alignment);
}

std::size_t product(std::int64_t a, std::int64_t b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

}  // namespace

LayerSizes layer_sizes(const ModelConfig& c, int micro_batch, int sequence) {
  const std::int64_t n = std::int64_t{micro_batch} * sequence, q = c.query_width(), kv = c.key_value_width();
  const bool post = c.family == Family::olmo2;
  LayerSizes s;
  s.x = s.x2 = product(n, c.hidden_size);
  (post ? s.projected : s.h) = s.x;
  (post ? s.down : s.h2) = s.x;
  s.qkv = product(n, q + 2 * kv);
  s.attended = product(n, q);
  s.up = product(n, c.gated() ? 2 * c.intermediate_size : c.intermediate_size);
  s.lse = product(n, c.num_attention_heads);
  s.inverse = static_cast<std::size_t>(n);
  if (c.family == Family::gpt) s.mean = s.inverse;
  if (c.family == Family::qwen3 || post) {
    s.qk = product(n, q + kv);
    s.inverse_q = product(n, post ? 1 : c.num_attention_heads);
    s.inverse_k = product(n, post ? 1 : c.num_key_value_heads);
  }
  return s;
}

std::size_t slot_bytes(const ModelConfig& c, LayerRange range, int micro_batch, int sequence, StorageWidth w,
                       bool recompute) {
  const LayerSizes s = layer_sizes(c, micro_batch, sequence);
  const auto layers = static_cast<std::size_t>(range.end - range.begin);
  const std::size_t x = rounded(s.x * w.compute, slot_alignment);
  std::size_t total = layers * x + (recompute ? 1 : layers) * inner_bytes(s, w);
  total += 2 * x;  // output of the stage, gradient of the stream
  if (range.end == c.num_hidden_layers)
    total += x + sum_bytes({s.inverse, s.mean, s.inverse}, w.accumulate, slot_alignment);  // final norm, token losses
  return total;
}

int logit_rows(const ModelConfig& c, int rows, std::size_t compute_width, std::size_t limit) {
  const auto row = static_cast<std::size_t>(c.vocab_size) * compute_width;
  const std::int64_t most = std::clamp<std::int64_t>(static_cast<std::int64_t>(limit / row), 1, std::max(rows, 1));
  const std::int64_t slices = (rows + most - 1) / most;
  if (slices <= 1) return std::max(rows, 1);
  const std::int64_t equal = (rows + slices - 1) / slices, even = (equal + 15) / 16 * 16;
  return static_cast<int>(std::min(even, most));
}

std::size_t scratch_bytes(const ModelConfig& c, int micro_batch, int sequence, StorageWidth w) {
  const std::int64_t n = std::int64_t{micro_batch} * sequence;
  const bool post = c.family == Family::olmo2;
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return rounded(product(rows, cols) * w.compute, scratch_alignment);
  };
  const std::size_t stream = bytes(n, c.hidden_size), inner = bytes(n, c.intermediate_size), before = post ? stream : 0;
  const std::size_t forward = stream + inner;
  const std::size_t backward_mlp = stream + before + inner;
  const std::size_t backward_attention =
      stream + before + bytes(n, c.query_width()) + bytes(n, c.query_width() + 2 * c.key_value_width());
  const std::size_t head = bytes(logit_rows(c, static_cast<int>(n), w.compute), c.vocab_size);
  return std::max({forward, backward_mlp, backward_attention, head});
}

ModelSize model_size(const ModelConfig& c, LayerRange range, int micro_batch, int sequence, StorageWidth w,
                     bool recompute, std::size_t optimizer_bytes) {
  const auto specs = tensor_specs(c, range);
  ModelSize size;
  for (const TensorSpec& spec : specs) size.parameters += spec.elements();
  size.weights = w.shared() ? 0 : matrix_arena_layout(specs).elements * w.compute;
  size.master = size.gradients = arena_layout(specs).elements * w.accumulate;
  size.optimizer = optimizer_bytes;
  size.activations = slot_bytes(c, range, micro_batch, sequence, w, recompute);
  size.workspace = scratch_bytes(c, micro_batch, sequence, w);
  return size;
}

}  // namespace sestina
