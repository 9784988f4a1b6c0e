// The optimizer that updates a tensor, and its numbers: matrices inside blocks go to the matrix optimizer, everything
// else (embeddings, head, norms, biases) to AdamW or another elementwise rule; the deck's groups may say otherwise. No
// Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

bool glob_match(std::string_view pattern, std::string_view name);  // with * and ?

// Returns true when the tensor is updated by a matrix optimizer rather than by the elementwise rule. A vector never is,
// unless it is packed matrices (TensorSpec::skew_block).
bool is_matrix_optimized(const TensorSpec&, const OptimizerOptions&);

// The deck's numbers for one tensor, where later groups win: the peak of the learning rate, and the decay; and those of
// the elementwise rule, where that updates it. A vector decays only where a group says so.
struct TensorRates {
  double lr = 0, weight_decay = 0;
  double beta1 = 0, beta2 = 0, eps = 0;
  bool operator==(const TensorRates&) const = default;
};
TensorRates rates_of(const TensorSpec&, const OptimizerOptions&);

// One of the matrices that a tensor is to its optimizer: itself, with optimizer.per_head a head of q, k or v, or a skew
// block. Where the tensor or its head has a side above that of the kind (MatrixKind::max_dim), it is cut into blocks of
// at most so many rows and columns: full ones first, the rest last.
struct MatrixPart {
  std::string name;  // name of the spec, "<name>/head_00" or "<name>/block_0000"; of a block, "/block_00_01" after it
  std::int64_t row_begin = 0;       // in the tensor
  std::int64_t rows = 0, cols = 0;  // as the optimizer sees it
  bool skew = false;                // packed in the tensor: see TensorSpec::skew_block
  std::int64_t col_begin = 0;       // in the tensor
  bool cut_cols = false;            // it has some of the columns of its rows, and so is not contiguous
  std::int64_t elements() const { return skew ? rows * (rows - 1) / 2 : rows * cols; }  // in the tensor
  bool is_copied() const { return skew || cut_cols; }                                   // to scratch, for its update
};
std::vector<MatrixPart> matrix_parts(const TensorSpec&, const OptimizerOptions&);

// Names of a tensor's update for tables: the kind that the deck asks for; "elements" for an elementwise rule, "whole",
// "heads", "packed rotations" or "blocks" by its matrices; and "model.layers.*.mlp.up_proj.weight" for all layers.
std::string rule_of(const TensorSpec&, const OptimizerOptions&);
std::string split_of(const TensorSpec&, const OptimizerOptions&);
std::string name_of_all_layers(const TensorSpec&);

// Returns whether the matrices of a tensor are its heads, or blocks of them: a tensor-parallel rank has each whole.
bool is_by_head(const TensorSpec&, const OptimizerOptions&);

// Number of each tensor's first matrix among those of the whole model, by HF name: staggered refreshes use it, so they
// fall due at the same updates whoever owns the matrix.
using MatrixIndex = std::map<std::string, std::int64_t, std::less<>>;
MatrixIndex matrix_index(const std::vector<TensorSpec>& model, const OptimizerOptions&);
std::size_t matrix_count(const std::vector<TensorSpec>& model, const OptimizerOptions&);

// Returns the phase of matrix `index` where every matrix has a period of its own: it falls due at updates t with (t +
// phase) mod period = 0. Phases are multiples of the golden ratio, which spreads the refreshes of any run of matrices
// over their periods.
inline std::int64_t refresh_phase(std::int64_t index, std::int64_t period) {
  constexpr std::uint32_t ratio = 2654435769;  // 2^32 (sqrt(5) - 1) / 2
  const std::uint32_t part = static_cast<std::uint32_t>(index) * ratio;
  return static_cast<std::int64_t>((static_cast<std::uint64_t>(part) * static_cast<std::uint64_t>(period)) >> 32);
}

// Collects an error for a pattern that fits no tensor of the whole model, or frozen ones alone, and so would change
// nothing, with the names that are there, and the one that was meant; and for betas and eps of a group of which the
// elementwise rule updates nothing.
void require_matching_groups(Deck&, const Options&);

// Collects errors where optimizer.kind updates packed skew matrices (TensorSpec::skew_block) and has no skew update,
// or where they are larger than it takes, since they are never cut.
void require_skew_updates(Deck&, Options&);

// The state that the elementwise rule keeps of (rows, cols) of a tensor, in the order of element_fields: numbers as
// wide as sums; for AdamW's moments of matrices, with optimizer.state_bits = 8, codes of a byte and a scale for each
// block of a row (kernels/blas/coded_moments.hpp). Vectors are small, and keep their numbers, but for those of
// TensorSpec::coded_state, each of which is one row.
bool has_coded_moments(const TensorSpec&, const OptimizerOptions&);
std::vector<FieldSize> adamw_fields(const TensorSpec&, std::int64_t rows, std::int64_t cols, const OptimizerOptions&,
                                    std::size_t accumulate_width);
std::size_t adamw_bytes(const TensorSpec&, std::int64_t rows, std::int64_t cols, const OptimizerOptions&,
                        std::size_t accumulate_width);

// Returns the bytes of optimizer state of these tensors.
std::size_t optimizer_state_bytes(const std::vector<TensorSpec>&, const OptimizerOptions&,
                                  std::size_t accumulate_width);

}  // namespace sestina
