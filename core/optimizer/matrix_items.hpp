// From tensors to the matrices that a MatrixSet updates: one, or with optimizer.per_head one for each
// head, or one for each packed block.
#pragma once
#include <string>
#include <vector>

#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/matrix_set.hpp"

namespace sestina {

struct MatrixTensor {
  TensorSpec spec;  // of what is updated: its name begins the names of its state
  TensorRates rates;
  std::int64_t index = 0;
  bool saved = true;           // see TensorHolding
  std::int64_t row_begin = 0;  // of the rows at hand: those of some of its matrices
};

// gradient, master and weight (rows at hand, n); weight empty where the master is computed with.
template <class Exec>
void add_matrix_items(const MatrixTensor& tensor, const OptimizerOptions& options,
                      const Matrix<const float, Exec>& gradient, const Matrix<float, Exec>& master,
                      const Matrix<bf16, Exec>& weight, std::vector<MatrixItem<Exec>>& items) {
  std::int64_t next = tensor.index;
  const std::int64_t row_end = tensor.row_begin + static_cast<std::int64_t>(master.extent(0));
  for (const MatrixPart& part : matrix_parts(tensor.spec, options)) {
    const std::int64_t index = next++;
    const std::int64_t rows = part.elements() / tensor.spec.cols;  // of the tensor
    if (part.row_begin < tensor.row_begin || part.row_begin + rows > row_end) continue;
    const auto m = static_cast<std::size_t>(part.skew ? 1 : part.rows),
               n = static_cast<std::size_t>(part.elements()) / m;
    const auto at = static_cast<std::size_t>((part.row_begin - tensor.row_begin) * tensor.spec.cols);
    OwnedMatrix<Exec> matrix{part.name,
                             Matrix<const float, Exec>(gradient.data() + at, m, n),
                             Matrix<float, Exec>(master.data() + at, m, n),
                             {}};
    if (weight.size() > 0) matrix.weight = Matrix<bf16, Exec>(weight.data() + at, m, n);
    items.push_back({matrix, tensor.rates, index, tensor.saved, static_cast<std::size_t>(part.skew ? part.rows : 0),
                     tensor.spec.reset_every, tensor.spec.reset_phase});
  }
}

}  // namespace sestina
