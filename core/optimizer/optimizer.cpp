#include "core/optimizer/optimizer.hpp"

#include <algorithm>

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

// Names a slab of a matrix that is updated by itself, in global rows and columns: a checkpoint tells it from the
// matrix.
template <class Exec, class T>
TensorSpec slab_spec(const OwnedTensor<Exec, T>& tensor) {
  TensorSpec spec = tensor.spec;
  spec.name += fmt::format("/rows_{}_{}_cols_{}_{}", tensor.row_begin, tensor.row_begin + tensor.rows(),
                           tensor.col_begin, tensor.col_begin + tensor.cols());
  spec.rows = tensor.rows();
  spec.cols = tensor.cols();
  return spec;
}

// Heads by themselves are whole on their rank, with their blocks, and so are blocks of rotations: they are the same
// matrices whoever owns them. Another slab is cut into blocks by itself.
template <class Exec, class T>
MatrixTensor matrix_tensor(const OwnedTensor<Exec, T>& tensor, const OptimizerOptions& options,
                           const MatrixIndex& index) {
  MatrixTensor matrix{tensor.spec, rates_of(tensor.spec, options), index.at(tensor.spec.name), tensor.saved};
  matrix.name = tensor.spec.name;
  if (tensor.is_whole()) return matrix;
  if (tensor.spec.is_packed() || is_by_head(tensor.spec, options))
    matrix.row_begin = tensor.row_begin;
  else
    matrix.spec = slab_spec(tensor);
  return matrix;
}

template <class Exec, class T>
std::vector<MatrixItem<Exec>> owned_items(const std::vector<OwnedTensor<Exec, T>>& tensors,
                                          const OptimizerOptions& options, const MatrixIndex& index) {
  std::vector<MatrixItem<Exec>> items;
  for (const auto& tensor : tensors) {
    if (!is_matrix_optimized(tensor.spec, options) || tensor.rows() == 0 || tensor.sharded) continue;
    const auto m = static_cast<std::size_t>(tensor.rows()), n = static_cast<std::size_t>(tensor.cols());
    Matrix<bf16, Exec> weight;
    if constexpr (std::is_same_v<T, bf16>)
      if (tensor.weight.size() > 0) weight = Matrix<bf16, Exec>(tensor.weight.data(), m, n);
    const std::size_t first = items.size();
    add_matrix_items<Exec>(matrix_tensor(tensor, options, index), options,
                           Matrix<const float, Exec>(tensor.gradient.data(), m, n),
                           Matrix<float, Exec>(tensor.master.data(), m, n), weight, items);
    for (std::size_t i = first; i < items.size(); ++i)
      items[i].matrix.rounded_later = std::is_same_v<T, bf16> && weight.size() == 0;
    if (tensor.coded.rows > 0) items.back().matrix.coded = tensor.coded;  // never in parts
  }
  return items;
}

}  // namespace

WorkerPool::Options worker_options(const RefreshOptions& refresh) {
  return {.workers = refresh.workers, .cores = refresh.cores, .priority = refresh.priority, .timeout = refresh.timeout};
}

template <class Exec, class T>
Optimizer<Exec, T>::Optimizer(const Exec& exec, const std::vector<OwnedTensor<Exec, T>>& tensors,
                              const OptimizerOptions& options, bool deterministic, const MatrixIndex& index,
                              const std::vector<MatrixItem<Exec>>& homed, double* nonfinite,
                              const std::shared_ptr<RefreshWorkers>& workers)
    : scalar_(exec, scalar_tensors(tensors, options), options, nonfinite) {
  std::vector<MatrixItem<Exec>> items = owned_items(tensors, options, index);
  items.insert(items.end(), homed.begin(), homed.end());
  if (items.empty()) return;
  MatrixSetOptions setting;
  setting.options = *options.matrix;
  setting.refresh.stagger = options.refresh.stagger;
  setting.refresh.count = options.refresh.count;
  setting.refresh.window = options.refresh.window;
  setting.refresh.max_failures = options.refresh.max_failures;
  setting.workers = worker_options(options.refresh);
  setting.shared_workers = workers;
  setting.deterministic = deterministic;
  setting.nonfinite = nonfinite;
  matrices_ = make_matrix_set<Exec>(exec, items, setting);
}

template <class Exec, class T>
void Optimizer<Exec, T>::step(const Exec& exec, std::int64_t t, double factor, double gradient_scale) {
  step_scalar(exec, t, factor, gradient_scale);
  step_matrices(t, factor, gradient_scale, 0, matrix_count());
}

template <class Exec, class T>
void Optimizer<Exec, T>::step_scalar(const Exec& exec, std::int64_t t, double factor, double gradient_scale) {
  scalar_.step(exec, t, factor, gradient_scale);
}

template <class Exec, class T>
void Optimizer<Exec, T>::step_matrices(std::int64_t t, double factor, double gradient_scale, std::size_t begin,
                                       std::size_t end) {
  if (begin < end) matrices_->step(t, factor, gradient_scale, begin, end);
}

template <class Exec, class T>
std::vector<StateField> Optimizer<Exec, T>::state() const {
  std::vector<StateField> fields = scalar_.state();
  if (matrices_)
    for (StateField& field : matrices_->state()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
std::vector<UpdateRecord> Optimizer<Exec, T>::records() const {
  std::vector<UpdateRecord> records = scalar_.records();
  if (!matrices_) return records;
  for (std::size_t i = 0; i < matrices_->size(); ++i) {
    const MatrixItem<Exec>& item = matrices_->items()[i];
    const auto elements = static_cast<std::int64_t>(item.matrix.master.size());
    const std::int64_t calls = matrices_->calls()[i];
    if (i == 0 || item.tensor != records.back().tensor) {
      records.push_back({item.tensor, matrices_->kind(), elements, calls, item.saved});
      continue;
    }
    records.back().elements += elements;
    records.back().calls = std::min(records.back().calls, calls);
  }
  return records;
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
