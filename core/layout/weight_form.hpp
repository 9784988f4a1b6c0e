// Forms in which the weight of a linear layer is kept and trained, in addition to dense, as specs, budgets and plans
// see them. A form is a row of the table here, and the mathematics that goes with it (core/model/linear_form.hpp).
// Nobody outside a form's own files knows it by name. No Kokkos.
#pragma once
#include <string>
#include <vector>

#include "core/layout/tensor_spec.hpp"

namespace sestina {

// The shape of one weight (out, in) and of N rows that go through it.
struct FormShape {
  std::size_t rows = 0, out = 0, in = 0;
  std::size_t element = 4, accumulate = 4;  // bytes of compute type and of its sums
};

// Bytes of scratch that a pass takes and gives back, as a Workspace counts.
struct FormScratch {
  std::size_t forward = 0, backward = 0;
  std::size_t merge = 0;  // for a merge, and for the way from or to a dense weight
};

// FLOPs of the products that a weight in a form executes in training, forward and backward.
struct FormWork {
  double per_row = 0;    // for each row through it
  double per_pass = 0;   // in addition, for each micro-batch
  double per_sum = 0;    // for gradients made of a sum: of each micro-batch, or of all of an update
  double per_merge = 0;  // for a merge
};

struct WeightForm {
  std::string name;  // as model.linear.form says it
  // Returns the tensors that a dense weight becomes; the first one has its shape. Names and parts are those of the
  // specs.
  std::vector<TensorSpec> (*parts)(const LinearOptions&, const TensorSpec& dense) = nullptr;
  // Returns whether a weight can have this form; if not, it stays dense where that is allowed.
  bool (*fits)(const LinearOptions&, const TensorSpec& dense) = nullptr;
  // Return the columns that a layer keeps from its forward pass (for all rows, unless blocks are recomputed), and those
  // that its input part hands to its weight part.
  std::int64_t (*kept)(const LinearOptions&, std::int64_t out, std::int64_t in) = nullptr;
  std::int64_t (*passed)(const LinearOptions&, std::int64_t out, std::int64_t in) = nullptr;
  FormScratch (*scratch)(const LinearOptions&, const FormShape&) = nullptr;
  // Returns the elements, in Acc<T>, of what passes add up for a weight where its gradient is made once an update;
  // null: the gradient itself is added up.
  std::int64_t (*sums)(const LinearOptions&, std::int64_t out, std::int64_t in) = nullptr;
  FormWork (*work)(const LinearOptions&, std::int64_t out, std::int64_t in) = nullptr;
  std::int64_t (*merge_every)(const LinearOptions&) = nullptr;  // updates, 0: never
  // Returns by how many updates its merges come before those of the first layer: after updates t with (t + phase) mod
  // every = 0.
  std::int64_t (*merge_phase)(const LinearOptions&, int layer) = nullptr;  // null: 0
  bool (*normalised)(const LinearOptions&) = nullptr;                      // first weights have rows of length one
};

const WeightForm* find_weight_form(const LinearOptions&);   // null: dense
std::int64_t updates_between_merges(const LinearOptions&);  // 0: the weights are never merged
// Returns the number (from 1) of the merge of this layer after update t, 0: none.
std::int64_t merge_after(const LinearOptions&, int layer, std::int64_t t);

// Returns the number of an early merge after update t: a function of t alone, apart from those of merge_after().
constexpr std::int64_t early_merge_number(std::int64_t t) { return (std::int64_t{1} << 40) + t; }

inline constexpr int most_parts = 8;  // largest number of parts of a weight in any form

// Returns whether the passes of an update add up what the gradients of such weights are made of, rather than the
// gradients. Deterministic runs do not: a tree over micro-batches must go on over ranks (accumulation_tree.hpp).
// in_turn: gradients leave after each micro-batch (parallel.shard).
constexpr bool gathers_sums(bool deterministic, std::int64_t micros, bool in_turn) {
  return !deterministic && micros > 1 && !in_turn;
}
// Return the elements of what they add up for a weight, a multiple of `arena_alignment`, and for all of these specs.
std::size_t size_of_sums(const LinearOptions&, std::int64_t out, std::int64_t in);
std::size_t size_of_sums(const LinearOptions&, const std::vector<TensorSpec>& specs);

// Returns the part of a dense weight with this name and shape, all else as the weight has it.
TensorSpec weight_part(const TensorSpec& dense, int part, const char* name, std::int64_t rows, std::int64_t cols,
                       Role role);

// Returns the specs of a layer with its weights in their form: adjacent groups (q, k, v; gate, up) are in it together
// or not at all.
std::vector<TensorSpec> formed_specs(const LinearOptions&, const std::vector<TensorSpec>& dense);

// Returns the same model with dense weights, as Hugging Face keeps it.
ModelConfig dense_model(ModelConfig);

// The forms other than dense, each in a source of its own.
WeightForm poet_x_form();
WeightForm lora_form();
WeightForm int8_form();

}  // namespace sestina
