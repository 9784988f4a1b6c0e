#include "core/layout/model_size.hpp"

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

LayerSizes layer_sizes(const ModelPart& part, int micro_batch, int sequence) {
  const ModelConfig& c = part.config;
  const std::int64_t n = std::int64_t{micro_batch} * sequence, own = part.own_rows(n);
  const std::int64_t q = c.query_width(), kv = c.key_value_width();
  const bool post = c.family == Family::olmo2;
  LayerSizes s;
  s.x = s.x2 = product(own, c.hidden_size);
  (post ? s.projected : s.h) = s.x;
  (post ? s.down : s.h2) = s.x;
  s.qkv = product(n, q + 2 * kv);
  s.attended = product(n, q);
  s.up = product(n, c.gated() ? 2 * c.intermediate_size : c.intermediate_size);
  s.lse = product(n, c.num_attention_heads);
  s.inverse = static_cast<std::size_t>(own);
  if (c.family == Family::gpt) s.mean = s.inverse;
  if (c.family == Family::qwen3 || post) {
    s.qk = product(n, q + kv);
    s.inverse_q = product(n, post ? 1 : c.num_attention_heads);
    s.inverse_k = product(n, post ? 1 : c.num_key_value_heads);
  }
  return s;
}

std::size_t slot_bytes(const ModelPart& part, LayerRange range, int micro_batch, int sequence, StorageWidth w,
                       bool recompute) {
  const LayerSizes s = layer_sizes(part, micro_batch, sequence);
  const auto layers = static_cast<std::size_t>(range.end - range.begin);
  const std::size_t x = rounded(s.x * w.compute, slot_alignment);
  std::size_t total = layers * x + (recompute ? 1 : layers) * inner_bytes(s, w);
  total += 2 * x;                                  // output of the stage, gradient of the stream
  if (range.end == part.config.num_hidden_layers)  // final norm, token losses
    total += x + sum_bytes({s.inverse, s.mean, product(micro_batch, sequence)}, w.accumulate, slot_alignment);
  return total;
}

int logit_rows(const ModelPart& part, int rows, std::size_t compute_width, std::size_t limit) {
  const auto row = static_cast<std::size_t>(part.largest_vocabulary()) * compute_width;
  const std::int64_t most = std::clamp<std::int64_t>(static_cast<std::int64_t>(limit / row), 1, std::max(rows, 1));
  const std::int64_t slices = (rows + most - 1) / most;
  if (slices <= 1) return std::max(rows, 1);
  const std::int64_t equal = (rows + slices - 1) / slices, even = (equal + 15) / 16 * 16;
  return static_cast<int>(std::min(even, most));
}

int logit_rows(const ModelConfig& c, int rows, std::size_t compute_width, std::size_t limit) {
  return logit_rows(model_part(c, 1, 0), rows, compute_width, limit);
}

std::size_t scratch_bytes(const ModelPart& part, int micro_batch, int sequence, StorageWidth w) {
  const ModelConfig& c = part.config;
  const std::int64_t n = std::int64_t{micro_batch} * sequence;
  const bool post = c.family == Family::olmo2;
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return rounded(product(rows, cols) * w.compute, scratch_alignment);
  };
  const auto sums = [&](std::int64_t count) {  // of rows, over the ranks
    return part.tp > 1 ? rounded(static_cast<std::size_t>(count) * w.accumulate, scratch_alignment) : 0;
  };
  const std::size_t stream = bytes(part.own_rows(n), c.hidden_size), before = post ? stream : 0;
  const std::size_t whole = part.splits_rows() ? bytes(n, c.hidden_size) : 0;  // gathered, or ahead of a sum
  const std::size_t inner = bytes(n, c.intermediate_size), norms = post ? sums(2 * n) : 0;
  const std::size_t forward = stream + std::max(inner + whole, norms);
  const std::size_t backward_mlp = stream + before + whole + inner + whole;
  const std::size_t backward_attention = stream + before + whole + bytes(n, c.query_width()) +
                                         bytes(n, c.query_width() + 2 * c.key_value_width()) + std::max(whole, norms);
  const int slice = logit_rows(part, static_cast<int>(n), w.compute);
  const std::size_t head = 2 * whole + bytes(slice, c.vocab_size) + sums(slice) + sums(2 * std::int64_t{slice});
  return std::max({forward, backward_mlp, backward_attention, head});
}

ModelSize model_size(const ModelPart& part, LayerRange range, int micro_batch, int sequence, StorageWidth w,
                     bool recompute, std::size_t optimizer_bytes) {
  const auto specs = tensor_specs(part.config, range);
  ModelSize size;
  for (const TensorSpec& spec : specs) size.parameters += spec.elements();
  size.weights = w.shared() ? 0 : matrix_arena_layout(specs).elements * w.compute;
  size.master = size.gradients = arena_layout(specs).elements * w.accumulate;
  size.optimizer = optimizer_bytes;
  size.activations = slot_bytes(part, range, micro_batch, sequence, w, recompute);
  size.workspace = scratch_bytes(part, micro_batch, sequence, w);
  return size;
}

ModelSize model_size(const ModelConfig& c, LayerRange range, int micro_batch, int sequence, StorageWidth w,
                     bool recompute, std::size_t optimizer_bytes) {
  return model_size(model_part(c, 1, 0), range, micro_batch, sequence, w, recompute, optimizer_bytes);
}

}  // namespace sestina
