#include "core/optimizer/optimizer.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
std::vector<OwnedTensor<Exec, T>> scalar_tensors(const std::vector<OwnedTensor<Exec, T>>& tensors,
                                                 const OptimizerOptions& options) {
  std::vector<OwnedTensor<Exec, T>> scalar;
  for (const auto& tensor : tensors)
    if (!is_matrix_optimized(tensor.spec, options)) scalar.push_back(tensor);
  return scalar;
}

template <class Exec, class T>
std::vector<MatrixItem<Exec>> matrix_items(const std::vector<OwnedTensor<Exec, T>>& tensors,
                                           const OptimizerOptions& options) {
  std::vector<MatrixItem<Exec>> items;
  for (const auto& tensor : tensors) {
    if (!is_matrix_optimized(tensor.spec, options)) continue;
    const TensorRates rates = rates_of(tensor.spec, options);
    for (const MatrixPart& part : matrix_parts(tensor.spec, options)) {
      const auto m = static_cast<std::size_t>(part.rows), n = static_cast<std::size_t>(part.cols);
      const std::size_t at = static_cast<std::size_t>(part.row_begin) * n;
      OwnedMatrix<Exec> matrix{part.name, {tensor.gradient.data() + at, m, n}, {tensor.master.data() + at, m, n}, {}};
      if constexpr (std::is_same_v<T, bf16>) matrix.weight = {tensor.weight.data() + at, m, n};
      items.push_back({matrix, rates});
    }
  }
  return items;
}

}  // namespace

template <class Exec, class T>
Optimizer<Exec, T>::Optimizer(const Exec& exec, const std::vector<OwnedTensor<Exec, T>>& tensors,
                              const OptimizerOptions& options, bool deterministic)
    : scalar_(exec, scalar_tensors(tensors, options), options) {
  const std::vector<MatrixItem<Exec>> items = matrix_items(tensors, options);
  if (items.empty()) return;
  MatrixSetSetting setting;
  setting.options = *options.matrix;
  setting.refresh.stagger = options.refresh.stagger;
  setting.refresh.max_failures = options.refresh.max_failures;
  setting.deterministic = deterministic;
  matrices_ = make_matrix_set<Exec>(exec, items, setting);
}

template <class Exec, class T>
void Optimizer<Exec, T>::step(const Exec& exec, std::int64_t t, double factor, double gradient_scale) {
  scalar_.step(exec, t, factor, gradient_scale);
  if (matrices_) matrices_->step(t, factor, gradient_scale);
}

template <class Exec, class T>
std::vector<StateField> Optimizer<Exec, T>::state() const {
  std::vector<StateField> fields = scalar_.state();
  if (matrices_)
    for (StateField& field : matrices_->state()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::size_t Optimizer<Exec, T>::state_bytes() const {
  std::size_t sum = 0;
  for (const StateField& field : state()) sum += field.bytes();
  return sum;
}

#define SESTINA_OPTIMIZER(Exec, T) template class Optimizer<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_OPTIMIZER)

}  // namespace sestina
