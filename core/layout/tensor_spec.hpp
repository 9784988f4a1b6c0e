// TensorSpec: the unit of optimization, ownership and checkpointing, and the truth about a tensor. Whoever writes a
// model's specs says here what others need to know, so that nobody asks a name what it means. Names and shapes are HF's
// and global. No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "core/deck/model_config.hpp"
#include "kernels/base/dtype.hpp"

namespace sestina {

enum class Role { matrix, embedding, head, vector };  // a tied embedding is an embedding

// The way in which tensor parallelism cuts a tensor.
enum class TensorCut : std::uint8_t {
  none,       // whole on each rank
  rows,       // even parts of the rows: column-parallel products, tables of the vocabulary
  key_value,  // rows by key and value heads; where these are fewer than ranks, consecutive ranks hold the same head
  cols        // even parts of the columns: row-parallel products
};

// The part of the model over which each tensor-parallel rank sums a gradient. Unless it is `own`, the sum over the
// ranks that hold the same elements is the gradient; otherwise a rank's gradient is whole, and the same bits on all
// ranks that hold it.
enum class GradientOf : std::uint8_t {
  own,           // everything that contributes to it
  shared_heads,  // the rank's queries, where several ranks hold the same key and value head
  heads,         // the rank's heads: one weight for all of them
  stream_rows    // the rank's rows of the residual stream, under sequence parallelism
};

enum class Initial : std::uint8_t { normal, ones, zeros };
enum class Projection : std::uint8_t { none, query, key };  // the projections that make attention scores

// The way in which a tensor is kept. A trained one is `compute` (then arena.hpp says how) or `coded_rows`.
enum class Stored : std::uint8_t {
  compute,    // as the model computes, without a master
  sum,        // Acc<T>
  index,      // 32-bit integers
  code,       // 8-bit integers
  half_code,  // 4-bit integers, two of a row in a byte
  coded_rows  // numbers in 8 bits, each row with its scales, without a master (kernels/model/quantise.hpp)
};

struct TensorSpec {
  std::string name;       // "model.layers.0.self_attn.q_proj.weight"
  std::int64_t rows = 0;  // out; length of a vector
  std::int64_t cols = 1;  // in; 1 for a vector
  Role role = Role::matrix;
  int layer = -1;        // -1: embedding, final norm, head
  int block = 0;         // blocks finish one by one in backward: 0 embedding, 1 + layer, last: final norm and head
  bool follows = false;  // lies right after its predecessor: one product serves both (fusion by adjacency)
  int heads = 0;         // number of heads that its rows are made of (q, k, v); 0: none
  TensorCut cut = TensorCut::none;
  GradientOf gradient_of = GradientOf::own;
  Initial initial = Initial::normal;
  Projection projection = Projection::none;
  bool ends_branch = false;  // its product is what a branch adds to the residual stream
  bool of_norm =
      false;  // its gradient comes with the input part of its layer's backward pass, others' with the weight part
  // These members are for a part of a weight in another form than dense (core/layout/weight_form.hpp).
  std::string weight{};   // the dense weight's name; "": a tensor by itself
  int part = -1;          // number in the order of the form
  bool trainable = true;  // false: frozen, but for a rule of its own; no gradient, no state, on every rank that uses it
  Stored stored = Stored::compute;
  std::int64_t group = 0;    // coded rows: columns that share a scale
  double initial_range = 0;  // standard deviation for Initial::normal; 0: the model's initializer_range
  // b, where it is not 0: the vector holds packed skew-symmetric matrices (b, b) one after the other, of each the
  // strict upper triangle, row by row. A matrix optimizer sees the matrices (core/optimizer/base/matrix_optimizer.hpp).
  std::int64_t skew_block = 0;
  bool is_packed() const { return skew_block > 0; }
  bool may_be_absent = false;  // a checkpoint may lack it: then it is zero
  // Rules for its optimizer: the factor on its learning rate; the updates after which all its state, step counts too,
  // starts over (0: never), the first time by the phase earlier.
  double lr_factor = 1;
  std::int64_t reset_every = 0, reset_phase = 0;
  bool resets_early = false;  // and after an early merge of its layer (LayerMerges)
  bool never_decays = false, eps_on_corrected = true;
  bool coded_state = false;  // of a vector: AdamW keeps its moments in 8 bits
  int expert = -1;           // number of the expert whose weight this is; -1: every token's
  bool is_vector() const { return role == Role::vector; }
  bool is_projection() const { return role == Role::matrix || !weight.empty(); }  // q, k, v, o, gate, up, down
  std::int64_t elements() const { return rows * cols; }
  bool is_coded() const { return stored == Stored::coded_rows; }
  bool has_master() const { return trainable && !is_coded(); }
  std::int64_t row_codes() const {  // bytes of a coded row
    return static_cast<std::int64_t>(coded_row_bytes(static_cast<std::size_t>(cols), static_cast<std::size_t>(group)));
  }
  // Elements of a row as it is kept, of the type that kept_as says.
  std::int64_t kept_cols() const {
    if (is_coded()) return row_codes();
    return stored == Stored::half_code ? cols / 2 : cols;
  }
};
// Returns which update since its state began update t (from 1) of the run is: the first one begins it again.
inline std::int64_t updates_of_state(std::int64_t reset_every, std::int64_t t, std::int64_t phase = 0) {
  const std::int64_t at = t - 1 + phase;
  return reset_every > 0 && at >= reset_every ? at % reset_every + 1 : t;
}
inline std::int64_t updates_of_state(const TensorSpec& spec, std::int64_t t) {
  return updates_of_state(spec.reset_every, t, spec.reset_phase);
}
// The update after which each layer of the whole model was merged early for the last time; 0: never.
using LayerMerges = std::vector<std::int64_t>;
// The same where layers may have been merged early; null: none can.
inline std::int64_t updates_of_state(std::int64_t plain, std::int64_t t, int layer, const LayerMerges* early) {
  if (early == nullptr || layer < 0 || (*early)[static_cast<std::size_t>(layer)] == 0) return plain;
  return std::min(plain, t - (*early)[static_cast<std::size_t>(layer)]);
}
// Returns the type in which a tensor is kept, a trained one by its master if it has one, for these bytes of a type.
DType kept_as(const TensorSpec&, std::size_t compute, std::size_t accumulate);
// Returns the bytes of a tensor that lies separately (frozen_layout).
std::size_t bytes_apart(const TensorSpec&, std::size_t compute, std::size_t accumulate);

struct LayerRange {
  int begin = 0, end = 0;
};  // layers of one pipeline stage

// The largest load of an expert, over the mean load of its layer's experts, and that layer, of equal ones the first.
struct LargestLoad {
  double over_mean = 0;
  int layer = -1;  // -1: no load is known
  void add(const LargestLoad& other) {
    if (other.layer < 0 || over_mean > other.over_mean) return;
    if (layer < 0 || other.over_mean > over_mean || other.layer < layer) *this = other;
  }
};

// Returns the specs of the layers in range (embedding with layer 0; final norm and head with the last), in layer order:
// q, k, v adjacent, gate, up adjacent; weights of linear layers in the form of the model's options. gpt uses the same
// names plus LayerNorm biases, biases of all its products where attention_bias, and model.embed_positions.weight when
// positions are learned.
std::vector<TensorSpec> tensor_specs(const ModelConfig&, LayerRange);
std::vector<TensorSpec> tensor_specs(const ModelConfig&);
inline LayerRange all_layers(const ModelConfig& config) { return {0, static_cast<int>(config.num_hidden_layers)}; }

// The places of tensors in a flat buffer, in elements: in the order of the specs, each run of tensors that follow one
// another begun on a multiple of `arena_alignment`.
inline constexpr std::size_t arena_alignment = 32;  // elements: 64 bytes of bf16
constexpr std::size_t aligned_elements(std::size_t n) {
  return (n + arena_alignment - 1) / arena_alignment * arena_alignment;
}
struct ArenaLayout {
  std::vector<std::size_t> offset;  // by spec
  std::size_t elements = 0;         // whole buffer, gaps included
};
ArenaLayout arena_layout(const std::vector<TensorSpec>&);   // every tensor that is trained: gradients
ArenaLayout master_layout(const std::vector<TensorSpec>&);  // those with master weights
ArenaLayout matrix_arena_layout(
    const std::vector<TensorSpec>&);  // their matrices alone: compute weights (a vector's offset is 0)

// Places of tensors without a master, frozen ones and coded rows, in bytes, each begun on a multiple of 256; the offset
// of others is 0.
ArenaLayout frozen_layout(const std::vector<TensorSpec>&, std::size_t compute, std::size_t accumulate);
void add_frozen(ArenaLayout&, const TensorSpec&, std::size_t compute, std::size_t accumulate);  // the next tensor

// Returns the rows of a tensor that stay together: sums over a tensor are taken chunk by chunk of so many rows, and
// where the rows of a tensor are sharded over ranks they are cut between chunks. So no cut changes a sum.
inline constexpr std::int64_t chunk_elements = 4096;
inline std::int64_t chunk_rows(const TensorSpec& spec) {
  return spec.cols < chunk_elements ? chunk_elements / spec.cols : 1;
}

// Sums over all tensors of a model without making them all, and the two sums that are used everywhere.
struct Options;

// Returns the sum of `of(spec)` over a model's tensors, as an integer or in double. Layers are equal: two of them tell
// what each adds.
template <class Of>
auto sum_over_tensors(ModelConfig config, Of of) {
  using Sum = std::common_type_t<decltype(of(TensorSpec())), std::int64_t>;
  const std::int64_t layers = config.num_hidden_layers;
  const auto sum_of = [&](std::int64_t few) {
    config.num_hidden_layers = few;
    Sum sum = 0;
    for (const TensorSpec& spec : tensor_specs(config)) sum += of(spec);
    return sum;
  };
  const Sum one = sum_of(1);
  return one + static_cast<Sum>(layers - 1) * (sum_of(2) - one);
}

// Return the parameters of the model, in whatever form its weights are trained; tied weights are counted once.
std::int64_t parameter_count(const ModelConfig&);
std::int64_t trainable_count(const ModelConfig&);  // those that an update changes, or those that stand for them
// Returns the FLOPs per token of forward and backward with dense weights: 6 N_matmul + 6 L H (2 h) T for N_matmul
// weights in products, L layers, H heads of dim h and T tokens; embeddings are left out, the head is counted once.
double flops_per_token(const ModelConfig&, std::int64_t sequence);

// Returns the FLOPs per token of a run, in the form of its weights, all ranks together. Dense weights count as above.
// Another form counts what is executed in the place of the dense products of a weight: none for gradients of what is
// frozen, those of adapters and rotations, what each micro-batch makes again, and merges, which each data-parallel rank
// does for itself. What tensor-parallel ranks compute equally counts on each of them. Recomputed blocks
// (train.recompute) are left out, as for dense weights.
double flops_per_token(const Options&);

}  // namespace sestina
