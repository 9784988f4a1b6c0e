// The memory of a model in plain numbers: the one place that says which activations are kept and how large the scratch
// of a pass is. `plan` prints these numbers, the model allocates by them. Letters: B sequences of T tokens, D hidden, F
// intermediate, Q = H heads times head dim, K = key/value heads times head dim, V vocabulary. No Kokkos.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/layout/rank_layout.hpp"

namespace sestina {

// Bytes of an element in the type that the model computes in, and in the type of its sums.
struct StorageWidth {
  std::size_t compute = 4, accumulate = 4;
  bool shared() const { return compute == accumulate; }  // the master weights are the compute weights
};
inline constexpr StorageWidth width_fp32{4, 4}, width_bf16{2, 4}, width_fp64{8, 8};

// Returns the width of the MLP that every token passes: with experts that of the shared one, 0 without.
inline std::int64_t mlp_width(const ModelConfig& c) {
  return c.has_experts() ? c.shared_expert_intermediate_size : c.intermediate_size;
}
// Returns the width of what its first product makes.
inline std::int64_t up_width(const ModelConfig& c) { return c.gated() ? 2 * mlp_width(c) : mlp_width(c); }
// Returns the parameters that a token passes: of the experts the chosen ones.
std::int64_t active_count(const ModelConfig&);

inline constexpr std::size_t slot_alignment = 64;      // bytes, of every view in an activation slot
inline constexpr std::size_t scratch_alignment = 256;  // bytes, of what a Workspace hands out

// Returns the elements from one row to the next of a wide activation or of its gradient, of so many columns. Rows begin
// at multiples of 16 bytes, which the fast products of a device want, and not at multiples of 2 or 4 KB: there all
// elements of a column share a few sets of a processor's first-level cache, and a product that reads columns (the
// gradient of a weight) takes a quarter longer where its other side is 256 wide (reports/processors.md).
inline constexpr std::int64_t row_group = 8;  // elements, of two bytes or more, that are at least 16 bytes
constexpr std::int64_t row_stride(std::int64_t columns) {
  constexpr std::int64_t worst = 1024, apart = 32;
  const std::int64_t even = (columns + row_group - 1) / row_group * row_group;
  return even % worst == 0 && even > 0 ? even + apart : even;
}

// Elements of each activation of one layer; 0 = not kept on its own; "apart": rows are row_stride apart. N =
// micro_batch * sequence; this rank has n of these rows of the residual stream.
struct LayerSizes {
  std::size_t x = 0;          // (n, D) block input; always kept
  std::size_t h = 0;          // (n, D) normalised input (pre-norm)
  std::size_t qkv = 0;        // (N, Q + 2K) product, apart; rotated in place where there are no q, k norms
  std::size_t qk = 0;         // (N, Q + K) normalised and rotated, where there are q, k norms
  std::size_t attended = 0;   // (N, Q)
  std::size_t projected = 0;  // (n, D) output of o_proj before its norm (post-norm)
  std::size_t x2 = 0;         // (n, D) stream between attention and MLP
  std::size_t h2 = 0;         // (n, D) normalised x2 (pre-norm)
  std::size_t up = 0;         // (N, 2F) gate and up, or (N, F), apart; F = mlp_width
  std::size_t down = 0;       // (n, D) output of down_proj before its norm (post-norm)
  // Elements that weights in another form than dense keep of their forward pass, unless blocks are recomputed.
  std::size_t kept_qkv = 0, kept_o = 0, kept_up = 0, kept_down = 0;
  // Mixtures of experts: N tokens with k choices each among E experts of width W, so R = N k rows; R' of them at most
  // are at the experts of this rank, all where it has all experts (ModelPart::expert_rows).
  std::size_t expert_rows = 0;  // R'
  std::size_t expert_up = 0;    // (R', 2W) gate and up, sorted by expert
  std::size_t choices = 0;      // (N, k) in 32 bits: numbers of experts; places among the sorted rows; tokens of these
  std::size_t counts = 0;       // (E) in 64 bits: rows of each expert
  // Elements in Acc<T>:
  std::size_t router = 0, choice_weights = 0, log_sums = 0;  // (N, E) probabilities, (N, k), (N) of router logits
  std::size_t lse = 0;                                       // (B, H, T)
  std::size_t inverse = 0, mean = 0;                         // (n) of each of the two norms; mean: LayerNorm
  std::size_t inverse_q = 0, inverse_k = 0;
};
LayerSizes layer_sizes(const ModelPart&, int micro_batch, int sequence, bool recompute = false);

// Returns the bytes of one activation slot: those of every layer (with recompute: of one layer and the inputs of all),
// the final norm, losses and the gradient of the residual stream.
std::size_t slot_bytes(const ModelPart&, LayerRange, int micro_batch, int sequence, StorageWidth, bool recompute);

// Returns the bytes it keeps in addition for two-part backward passes: what the input parts leave for the weight parts.
std::size_t split_bytes(const ModelPart&, LayerRange, int micro_batch, int sequence, StorageWidth);
// Returns how far rows of these are apart, by layer: before the sum after attention, of q, k, v, inside the MLP, before
// its sum; what the input parts of qkv, o, up and down pass on, 0 where they are dense; and of router logits. Rows of
// experts (widths moe_intermediate_size and D) come on top of them.
std::array<std::int64_t, 9> split_widths(const ModelConfig&);

// Returns the rows of logits that exist at a time: equal slices of at most ModelPart::logit_bytes, at least one row;
// the same on all ranks.
int logit_rows(const ModelPart&, int rows, std::size_t compute_width);

// Returns the bytes of scratch that a pass takes in addition to what the kernels take for themselves.
std::size_t scratch_bytes(const ModelPart&, int micro_batch, int sequence, StorageWidth);

struct ModelSize {
  std::int64_t parameters = 0;
  std::size_t weights = 0, master = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;  // bytes
  std::size_t stash = 0;      // of a pipeline: older weights, and buffers between stages
  std::size_t exchanges = 0;  // with other ranks: what comes from them, and whole matrices at their homes
  std::size_t total() const {
    return weights + master + gradients + optimizer + activations + workspace + stash + exchanges;
  }
};
// Returns the size of the whole model, or of one rank's part, with one activation slot. optimizer_bytes: bytes of
// optimizer state (core/optimizer/base/routing.hpp).
ModelSize model_size(const ModelPart&, LayerRange, int micro_batch, int sequence, StorageWidth, bool recompute,
                     std::size_t optimizer_bytes);
ModelSize model_size(const ModelConfig&, LayerRange, int micro_batch, int sequence, StorageWidth, bool recompute,
                     std::size_t optimizer_bytes);

}  // namespace sestina
