// The table of updates: which rule updates a tensor, as which matrices, on which ranks and at which rates, as the plan
// has it. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/plan/make_plan.hpp"

namespace sestina {

struct UpdateRow {
  std::string pattern;              // HF name; of equal tensors of several layers with * for the layer
  std::vector<std::int64_t> shape;  // of a tensor
  std::string rule;                 // "adamw" or optimizer.kind
  std::string split;                // as split_of has it; "slabs": each tensor-parallel rank updates its part by itself
  std::vector<int> owners;          // ranks of the run, ascending
  double lr = 0, weight_decay = 0;  // peaks
  std::int64_t tensors = 1;
};

// Returns the row of one tensor, which must be trained.
UpdateRow update_row(const Plan&, int stage, int spec);
// Returns the rows of all tensors that are trained, in the order of the model; equal rows are one.
std::vector<UpdateRow> update_table(const Plan&);

std::string ranks_text(const std::vector<int>& ascending);  // "0-3, 6"
// Returns a head line and one line for each row, in columns.
std::vector<std::string> table_lines(const std::vector<UpdateRow>&);

}  // namespace sestina
