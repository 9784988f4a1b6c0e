// What a model takes in memory, in plain numbers: the one place that says which activations are kept and how large the
// scratch of a pass is. `plan` prints these numbers, the model allocates by them. No Kokkos.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/layout/rank_layout.hpp"

namespace sestina {

// Bytes of an element the model computes in and of one it sums in.
struct StorageWidth {
  std::size_t compute = 4, accumulate = 4;
  bool shared() const { return compute == accumulate; }  // the master weights are the compute weights
};
inline constexpr StorageWidth width_fp32{4, 4}, width_bf16{2, 4}, width_fp64{8, 8};

inline constexpr std::size_t slot_alignment = 64;                        // bytes, of every view in an activation slot
inline constexpr std::size_t scratch_alignment = 256;                    // bytes, of what a Workspace hands out
inline constexpr std::size_t logit_bytes_limit = std::size_t{64} << 20;  // of one slice of logits

// Elements of each activation of one layer; 0 = not kept on its own. N = micro_batch * sequence, of which the residual
// stream has the n rows of this rank.
struct LayerSizes {
  std::size_t x = 0;          // (n, D) block input; always kept
  std::size_t h = 0;          // (n, D) normalised input (pre-norm)
  std::size_t qkv = 0;        // (N, Q + 2K) product; rotated in place where there are no q, k norms
  std::size_t qk = 0;         // (N, Q + K) normalised and rotated, where there are q, k norms
  std::size_t attended = 0;   // (N, Q)
  std::size_t projected = 0;  // (n, D) output of o_proj before its norm (post-norm)
  std::size_t x2 = 0;         // (n, D) stream between attention and MLP
  std::size_t h2 = 0;         // (n, D) normalised x2 (pre-norm)
  std::size_t up = 0;         // (N, 2F) gate and up, or (N, F)
  std::size_t down = 0;       // (n, D) output of down_proj before its norm (post-norm)
  // What weights in another form than dense keep of their forward pass, unless blocks are recomputed.
  std::size_t kept_qkv = 0, kept_o = 0, kept_up = 0, kept_down = 0;
  // In Acc<T>:
  std::size_t lse = 0;                // (B, H, T)
  std::size_t inverse = 0, mean = 0;  // (n) of each of the two norms; mean: LayerNorm
  std::size_t inverse_q = 0, inverse_k = 0;
};
LayerSizes layer_sizes(const ModelPart&, int micro_batch, int sequence, bool recompute = false);

// Bytes of one activation slot: every layer's (with recompute: one layer's and the inputs of all), final norm, losses
// and the gradient of the residual stream.
std::size_t slot_bytes(const ModelPart&, LayerRange, int micro_batch, int sequence, StorageWidth, bool recompute);

// Bytes that it keeps besides where backward passes are in two parts: what the input parts leave for the weight parts.
std::size_t split_bytes(const ModelPart&, LayerRange, int micro_batch, int sequence, StorageWidth);
// Widths of these, by layer: in front of the sum after attention, of q, k, v, inside the MLP, in front of its sum; what
// the input parts of qkv, o, up and down pass on, 0 where they are dense.
std::array<std::int64_t, 8> split_widths(const ModelConfig&);

// Rows of logits that exist at a time: slices of equal size under the limit, at least one row; the same on all ranks.
int logit_rows(const ModelPart&, int rows, std::size_t compute_width, std::size_t limit = logit_bytes_limit);
int logit_rows(const ModelConfig&, int rows, std::size_t compute_width, std::size_t limit = logit_bytes_limit);

// Bytes of scratch that a forward or backward pass takes in addition to what the kernels take for themselves.
std::size_t scratch_bytes(const ModelPart&, int micro_batch, int sequence, StorageWidth);

struct ModelSize {
  std::int64_t parameters = 0;
  std::size_t weights = 0, master = 0, gradients = 0, optimizer = 0, activations = 0, workspace = 0;  // bytes
  std::size_t stash = 0;      // of a pipeline: older weights, and what lies between stages
  std::size_t exchanges = 0;  // with other ranks: what comes from them, and whole matrices at their homes
  std::size_t total() const {
    return weights + master + gradients + optimizer + activations + workspace + stash + exchanges;
  }
};
// optimizer_bytes: of optimizer state (optimizer/routing.hpp). One activation slot. The whole model, or one rank's
// part.
ModelSize model_size(const ModelPart&, LayerRange, int micro_batch, int sequence, StorageWidth, bool recompute,
                     std::size_t optimizer_bytes);
ModelSize model_size(const ModelConfig&, LayerRange, int micro_batch, int sequence, StorageWidth, bool recompute,
                     std::size_t optimizer_bytes);

}  // namespace sestina
