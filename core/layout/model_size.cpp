#include "core/layout/model_size.hpp"

#include <algorithm>

#include "core/layout/weight_form.hpp"

namespace sestina {
namespace {

std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

std::size_t sum_bytes(std::initializer_list<std::size_t> elements, std::size_t width, std::size_t alignment) {
  std::size_t total = 0;
  for (const std::size_t n : elements) total += rounded(n * width, alignment);
  return total;
}

// Returns the bytes of one layer's activations without its input.
std::size_t inner_bytes(const LayerSizes& s, StorageWidth w) {
  return sum_bytes({s.h, s.qkv, s.qk, s.attended, s.projected, s.x2, s.h2, s.up, s.down, s.kept_qkv, s.kept_o,
                    s.kept_up, s.kept_down, s.expert_up},
                   w.compute, slot_alignment) +
         sum_bytes({s.choices, s.choices, s.choices}, sizeof(std::int32_t), slot_alignment) +
         sum_bytes({s.counts}, sizeof(std::int64_t), slot_alignment) +
         sum_bytes({s.lse, s.inverse, s.mean, s.inverse, s.mean, s.inverse_q, s.inverse_k, s.router, s.choice_weights,
                    s.log_sums},
                   w.accumulate, slot_alignment);
}

std::size_t product(std::int64_t a, std::int64_t b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

void add_expert_sizes(const ModelPart& part, std::int64_t n, LayerSizes& s) {
  const ModelConfig& c = part.config;
  s.expert_rows = static_cast<std::size_t>(part.expert_rows(n));
  s.expert_up = product(part.expert_rows(n), 2 * c.moe_intermediate_size);
  s.choices = s.choice_weights = product(n, c.num_experts_per_tok);
  s.counts = static_cast<std::size_t>(c.num_experts);
  s.router = product(n, c.num_experts);
  s.log_sums = static_cast<std::size_t>(n);
}

// The linear layers of a block whose weights are in another form than dense, by adjacent groups.
struct FormedGroups {
  std::vector<TensorSpec> qkv, o, up, down;  // as dense
  std::vector<TensorSpec>& operator[](int i) { return i == 0 ? qkv : i == 1 ? o : i == 2 ? up : down; }
};

FormedGroups formed_groups(const ModelConfig& c, const WeightForm& form) {
  FormedGroups groups;
  ModelConfig dense = dense_model(c);
  dense.num_hidden_layers = 1;  // layers are equal
  for (const TensorSpec& spec : tensor_specs(dense)) {
    if (spec.role != Role::matrix) continue;
    std::vector<TensorSpec>& group = spec.heads > 0                ? groups.qkv
                                     : spec.cut == TensorCut::rows ? groups.up
                                     : groups.o.empty()            ? groups.o
                                                                   : groups.down;
    group.push_back(spec);
  }
  for (int i = 0; i < 4; ++i)
    if (!std::all_of(groups[i].begin(), groups[i].end(),
                     [&](const TensorSpec& spec) { return form.fits(c.linear, spec); }))
      groups[i].clear();
  return groups;
}

using Columns = std::int64_t (*)(const LinearOptions&, std::int64_t, std::int64_t);

std::int64_t columns_of(const LinearOptions& options, const std::vector<TensorSpec>& group, Columns columns) {
  std::int64_t sum = 0;
  for (const TensorSpec& spec : group) sum += columns(options, spec.rows, spec.cols);
  return sum;
}

// Scratch of the layers that are in another form: what their input parts leave for their weight parts, and the largest
// amount that one pass of one of them takes.
struct FormBytes {
  std::size_t passed_attention = 0, passed_mlp = 0;
  FormScratch scratch;
};

FormBytes form_bytes(const ModelConfig& c, std::size_t n, StorageWidth w) {
  FormBytes bytes;
  const WeightForm* form = find_weight_form(c.linear);
  if (form == nullptr) return bytes;
  FormedGroups groups = formed_groups(c, *form);
  if (!groups.down.empty())  // the input of down_proj, made again
    bytes.passed_mlp =
        rounded(product(static_cast<std::int64_t>(n), row_stride(c.intermediate_size)) * w.compute, scratch_alignment);
  for (int i = 0; i < 4; ++i) {
    const std::size_t passed =
        rounded(product(static_cast<std::int64_t>(n), columns_of(c.linear, groups[i], form->passed)) * w.compute,
                scratch_alignment);
    (i < 2 ? bytes.passed_attention : bytes.passed_mlp) += passed;
    for (const TensorSpec& spec : groups[i]) {
      const FormScratch one = form->scratch(c.linear, {n, static_cast<std::size_t>(spec.rows),
                                                       static_cast<std::size_t>(spec.cols), w.compute, w.accumulate});
      bytes.scratch.forward = std::max(bytes.scratch.forward, one.forward);
      bytes.scratch.backward = std::max(bytes.scratch.backward, one.backward);
      bytes.scratch.merge = std::max(bytes.scratch.merge, one.merge);
    }
  }
  return bytes;
}

// Bytes of scratch of the experts of a layer, in the order in which experts.cpp takes it.
struct ExpertScratch {
  std::size_t forward = 0, backward = 0;
};

// Where ranks share out experts, rows of tokens lie sorted in one place, and those at the experts in another.
ExpertScratch expert_scratch(const ModelPart& part, std::int64_t n, StorageWidth w) {
  const ModelConfig& c = part.config;
  if (!c.has_experts()) return {};
  const bool apart = part.ep > 1;
  const std::int64_t sorted = apart ? n * c.num_experts_per_tok : 0, here = part.expert_rows(n);
  const auto bytes = [&](std::int64_t elements, std::size_t width) {
    return rounded(static_cast<std::size_t>(elements) * width, scratch_alignment);
  };
  const std::size_t stream = bytes(here * c.hidden_size, w.compute), tokens = bytes(sorted * c.hidden_size, w.compute),
                    inner = bytes(here * c.moe_intermediate_size, w.compute);
  return {stream + inner + tokens, 2 * stream + inner + tokens + bytes(here, w.accumulate) +
                                       bytes(sorted, w.accumulate) + bytes(n * c.num_experts, w.compute)};
}

}  // namespace

std::int64_t active_count(const ModelConfig& c) {
  const std::int64_t expert = 3 * c.hidden_size * c.moe_intermediate_size;
  return parameter_count(c) - c.num_hidden_layers * (c.num_experts - c.num_experts_per_tok) * expert;
}

LayerSizes layer_sizes(const ModelPart& part, int micro_batch, int sequence, bool recompute) {
  const ModelConfig& c = part.config;
  const std::int64_t n = std::int64_t{micro_batch} * sequence, own = part.own_rows(n);
  const std::int64_t q = c.query_width(), kv = c.key_value_width();
  const bool post = c.family == Family::olmo2;
  LayerSizes s;
  s.x = s.x2 = product(own, c.hidden_size);
  (post ? s.projected : s.h) = s.x;
  (post ? s.down : s.h2) = s.x;
  s.qkv = product(n, row_stride(q + 2 * kv));
  s.attended = product(n, q);
  s.up = product(n, row_stride(up_width(c)));
  if (c.has_experts()) add_expert_sizes(part, n, s);
  s.lse = product(n, c.num_attention_heads);
  s.inverse = static_cast<std::size_t>(own);
  if (c.layer_norms()) s.mean = s.inverse;
  if (c.query_norms()) {
    s.qk = product(n, q + kv);
    s.inverse_q = product(n, post ? 1 : c.num_attention_heads);
    s.inverse_k = product(n, post ? 1 : c.num_key_value_heads);
  }
  const WeightForm* form = find_weight_form(c.linear);
  if (form == nullptr || recompute) return s;
  FormedGroups groups = formed_groups(c, *form);
  std::size_t* const kept[] = {&s.kept_qkv, &s.kept_o, &s.kept_up, &s.kept_down};
  for (int i = 0; i < 4; ++i) *kept[i] = product(n, columns_of(c.linear, groups[i], form->kept));
  return s;
}

std::size_t slot_bytes(const ModelPart& part, LayerRange range, int micro_batch, int sequence, StorageWidth w,
                       bool recompute) {
  const LayerSizes s = layer_sizes(part, micro_batch, sequence, recompute);
  const auto layers = static_cast<std::size_t>(range.end - range.begin);
  const std::size_t x = rounded(s.x * w.compute, slot_alignment);
  std::size_t total = layers * x + (recompute ? 1 : layers) * inner_bytes(s, w);
  total += 2 * x;  // output of the stage, gradient of the stream
  if (range.begin == 0 && part.config.embedding_norm)
    total += x + sum_bytes({s.inverse, s.mean}, w.accumulate, slot_alignment);
  if (range.end == part.config.num_hidden_layers)  // final norm, token losses
    total += x + sum_bytes({s.inverse, s.mean, product(micro_batch, sequence)}, w.accumulate, slot_alignment);
  return total;
}

std::array<std::int64_t, 9> split_widths(const ModelConfig& c) {
  std::array<std::int64_t, 9> widths = {c.hidden_size, row_stride(c.query_width() + 2 * c.key_value_width()),
                                        row_stride(mlp_width(c)), mlp_width(c) > 0 ? c.hidden_size : 0};
  widths[8] = c.num_experts;
  const WeightForm* form = find_weight_form(c.linear);
  if (form == nullptr) return widths;
  FormedGroups groups = formed_groups(c, *form);
  for (int i = 0; i < 4; ++i) widths[static_cast<std::size_t>(4 + i)] = columns_of(c.linear, groups[i], form->passed);
  return widths;
}

std::size_t split_bytes(const ModelPart& part, LayerRange range, int micro_batch, int sequence, StorageWidth w) {
  std::size_t layer = 0;
  for (const std::int64_t width : split_widths(part.config))
    layer += rounded(product(std::int64_t{micro_batch} * sequence, width) * w.compute, slot_alignment);
  if (part.config.has_experts())
    for (const std::int64_t width : {part.config.moe_intermediate_size, part.config.hidden_size})
      layer +=
          rounded(product(part.expert_rows(std::int64_t{micro_batch} * sequence), width) * w.compute, slot_alignment);
  return layer * static_cast<std::size_t>(range.end - range.begin);
}

int logit_rows(const ModelPart& part, int rows, std::size_t compute_width) {
  const auto row = static_cast<std::size_t>(part.largest_vocabulary()) * compute_width;
  const std::int64_t most =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(part.logit_bytes / row), 1, std::max(rows, 1));
  const std::int64_t slices = (rows + most - 1) / most;
  if (slices <= 1) return std::max(rows, 1);
  const std::int64_t equal = (rows + slices - 1) / slices, even = (equal + 15) / 16 * 16;
  return static_cast<int>(std::min(even, most));
}

std::size_t scratch_bytes(const ModelPart& part, int micro_batch, int sequence, StorageWidth w) {
  const ModelConfig& c = part.config;
  const std::int64_t n = std::int64_t{micro_batch} * sequence;
  const bool post = c.family == Family::olmo2;
  const auto bytes = [&](std::int64_t rows, std::int64_t cols) {
    return rounded(product(rows, cols) * w.compute, scratch_alignment);
  };
  const auto sums = [&](std::int64_t count) {  // sums of rows, over the ranks
    return part.tp > 1 ? rounded(static_cast<std::size_t>(count) * w.accumulate, scratch_alignment) : 0;
  };
  const std::size_t stream = bytes(part.own_rows(n), c.hidden_size), before = post ? stream : 0;
  const std::size_t whole = part.splits_rows() ? bytes(n, c.hidden_size) : 0;  // gathered, or before a sum
  const std::size_t inner = bytes(n, row_stride(mlp_width(c))), norms = post ? sums(2 * n) : 0;
  // Of down_proj, the one weight whose rows may be odd: a copy, or its gradient.
  const std::size_t odd =
      part.aligns_rows && mlp_width(c) % row_group != 0
          ? rounded(product(c.hidden_size, row_stride(mlp_width(c))) * w.accumulate, scratch_alignment)
          : 0;
  const FormBytes formed = form_bytes(c, static_cast<std::size_t>(n), w);
  const ExpertScratch experts = expert_scratch(part, n, w);
  const std::size_t forward = stream + std::max(inner + whole + experts.forward + odd, norms) + formed.scratch.forward;
  const std::size_t backward_mlp =
      stream + before + whole + inner + whole + experts.backward + odd + formed.passed_mlp + formed.scratch.backward;
  const std::size_t backward_attention = stream + before + whole + bytes(n, c.query_width()) +
                                         bytes(n, row_stride(c.query_width() + 2 * c.key_value_width())) +
                                         std::max(whole, norms) + formed.passed_attention + formed.scratch.backward;
  const int slice = logit_rows(part, static_cast<int>(n), w.compute);
  const std::size_t head =
      2 * whole + bytes(slice, row_stride(c.vocab_size)) + sums(slice) + sums(2 * std::int64_t{slice});
  return std::max({forward, backward_mlp, backward_attention, head, formed.scratch.merge});
}

ModelSize model_size(const ModelPart& part, LayerRange range, int micro_batch, int sequence, StorageWidth w,
                     bool recompute, std::size_t optimizer_bytes) {
  const auto specs = tensor_specs(part.config, range);
  ModelSize size;
  for (const TensorSpec& spec : specs) size.parameters += spec.trainable ? spec.elements() : 0;
  size.weights = (w.shared() ? 0 : matrix_arena_layout(specs).elements * w.compute) +
                 frozen_layout(specs, w.compute, w.accumulate).elements;
  size.master = master_layout(specs).elements * w.accumulate;
  size.gradients = arena_layout(specs).elements * w.accumulate;
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
