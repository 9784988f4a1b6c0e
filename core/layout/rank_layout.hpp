// The part of a model that one rank holds: rows of the residual stream, heads, columns and rows under tensor
// parallelism, and the shard of each tensor. No Kokkos.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/layout/tensor_spec.hpp"

namespace sestina {

// The rule by which rows are sharded over the ranks of a group.

// Returns the first row of a rank's part when `rows` rows are sharded evenly, in order.
inline std::int64_t first_row_of(std::int64_t rows, int size, int rank) { return rows * rank / size; }

// The bytes of logits that exist at a time where the deck says none. A host has a slice in its caches soon; a device is
// busy with large products alone.
inline constexpr std::size_t host_logit_bytes = std::size_t{64} << 20, device_logit_bytes = std::size_t{1} << 30;

// One rank's part of a model under tensor parallelism: its heads, its columns of the MLP, its rows of the vocabulary,
// and its rows of the residual stream (sequence parallelism: Korthikanti et al. 2022). The layers see the part alone.
struct ModelPart {
  // The sizes of this rank: num_attention_heads, num_key_value_heads, intermediate_size, those of experts and
  // vocab_size are its share, hidden_size and head_dim are whole. So tensor_specs(config) are the local tensors.
  ModelConfig config;
  int tp = 1, tp_rank = 0;
  std::int64_t vocabulary_begin = 0, vocabulary = 0;  // first own row of the vocabulary; all rows
  std::int64_t key_value_heads = 0;                   // number in the whole model
  bool sequence_parallel = true;
  // Expert parallelism: this rank has the experts from ep_rank E / ep on, E / ep of them; config counts all.
  // expert_room is parallel.expert_room.
  int ep = 1, ep_rank = 0;
  double expert_room = 0;
  std::size_t logit_bytes = host_logit_bytes;  // of the logits that exist at a time: one slice of the rows
  // Products read weights whose rows do not begin at multiples of 16 bytes from copies whose rows do, and make their
  // gradients so: on a device in bf16, whose library multiplies others at a fraction of its speed.
  bool aligns_rows = false;

  std::int64_t own_experts() const { return config.num_experts / ep; }
  std::int64_t first_expert() const { return ep_rank * own_experts(); }
  bool has_expert(int expert) const { return expert / std::max<std::int64_t>(own_experts(), 1) == ep_rank; }
  // Returns the most rows that come to the experts of this rank when each rank of the group has n tokens. A token goes
  // to an expert once at most; the mean is n num_experts_per_tok.
  std::int64_t expert_rows(std::int64_t n) const;

  bool splits_rows() const { return tp > 1 && sequence_parallel; }
  // Returns how many of n rows of the residual stream are on this rank.
  std::int64_t own_rows(std::int64_t n) const {
    return splits_rows() ? first_row_of(n, tp, tp_rank + 1) - first_row_of(n, tp, tp_rank) : n;
  }
  // Returns the number of ranks that hold the same key and value heads, one after the other.
  int key_value_holders() const { return key_value_heads < tp ? static_cast<int>(tp / key_value_heads) : 1; }
  bool first_key_value_holder() const { return tp_rank % key_value_holders() == 0; }
  std::int64_t largest_vocabulary() const { return (vocabulary + tp - 1) / tp; }  // rows of the largest part
};

// Cuts the model as parallel/plan/shard_layout.hpp does; tp must fit (tensor_parallel_defects).
ModelPart model_part(const ModelConfig& whole, int tp, int tp_rank, bool sequence_parallel = true);

// Returns whether the model leaves only a part of this tensor's gradient on each of the ranks that hold the same
// elements, so that their sum is the gradient. Otherwise a rank's gradient is whole, and the same bits on all ranks
// that hold it.
bool gradient_is_partial(const TensorSpec&, const ModelConfig& whole, int tp, bool sequence_parallel = true);

// A rank's holding of one tensor of its model: its shard, the rows whose master weights and optimizer state it keeps,
// and the place of the gradient. Plain data; one rank by itself holds and owns all.
struct TensorHolding {
  TensorSpec whole;  // the tensor of the model
  TensorSpec local;  // the shard that is computed with here: all of it without tensor parallelism
  std::int64_t row_begin = 0, col_begin = 0;    // of the shard in the tensor
  std::int64_t owned_begin = 0, owned_end = 0;  // rows of the shard whose complete gradient this rank has, and, but for
                                                // homed ones, whose master weights and state it keeps
  bool row_sharded =
      false;  // rows are sharded over data-parallel ranks (cuts: multiples of chunk_rows), else it has one owner
  bool homed = false;    // one tensor-parallel rank updates it whole (parallel/stage/matrix_homes.hpp)
  bool sharded = false;  // a matrix that is updated where its shards are, by the whole tensor-parallel group
                         // (core/optimizer/methods/sharded_muon.hpp)
  bool saved = true;     // false: another rank has the same values, which counts them and writes them to checkpoints
  bool counted = true;   // false: another rank of the tensor-parallel group has the same shard, and enters it into sums
  std::size_t gradient_offset = 0;  // place of the shard's gradient in the gradient buffer, elements
  std::size_t sum_offset = 0;       // gradients in turn: place of the owned rows' complete gradient in the same buffer
  std::size_t weight_offset = 0;    // weights in turn: place of the shard among matrices, or among vectors; elements
  std::int64_t owned_rows() const { return owned_end - owned_begin; }
  std::size_t owned_elements() const { return static_cast<std::size_t>(owned_rows() * local.cols); }
};

struct RankLayout {
  std::vector<TensorHolding> tensors;  // in the order of the specs
  std::size_t gradient_elements = 0;   // size of the buffer, gaps included
  // parallel.shard: blocks take turns in a few places with their whole gradients, or with their whole weights too
  // (parallel/plan/block_turns.hpp); what is owned of them lies separately, of weights as masters. In the gradient
  // buffer it is after the places.
  bool gradients_in_turn = false, weights_in_turn = false;
  std::size_t matrix_elements = 0, vector_elements = 0;  // of the places of weights
};

// Where the tensors of a rank lie in its arena (core/layout/arena.hpp), by element, and by byte where they are frozen;
// each run of tensors that follow one another begins on a multiple of arena_alignment. The arena allocates by these
// numbers, plans count them.
struct ArenaPlaces {
  ArenaLayout values;  // in the type of sums: master weights of what is owned, and whole shards that are computed with
  ArenaLayout matrices;  // in the type of weights: shards, or homed matrices of those that take turns
  ArenaLayout frozen;
};
// compute, accumulate: bytes of an element in the two types.
ArenaPlaces arena_places(const RankLayout&, std::size_t compute, std::size_t accumulate);

// Returns the elements of a tensor's master weights that this rank keeps for itself.
inline std::size_t master_elements(const TensorHolding& tensor) {
  return tensor.homed || !tensor.local.has_master() ? 0 : tensor.owned_elements();
}
// Returns whether values in the type of sums that the model reads are there for the whole shard, owned or not. shared:
// this is the type of weights too.
inline bool keeps_values_whole(const RankLayout& layout, const TensorHolding& tensor, bool shared) {
  return tensor.local.has_master() && (shared || tensor.local.is_vector()) && !layout.weights_in_turn;
}

// Returns the number of gradient buffers in addition to the arena's that a deterministic sum over so many micro-batches
// takes (accumulation_tree.hpp).
constexpr int tree_levels(int micros) {
  int levels = 0;
  while ((1 << levels) < micros) ++levels;
  return levels;
}

// Returns the layout of one rank that holds and owns everything; gradients lie as arena_layout says.
RankLayout lone_layout(const std::vector<TensorSpec>&);

}  // namespace sestina
