#include "core/optimizer/gradient_norm.hpp"

#include <algorithm>

#include "kernels/blas/reduce.hpp"

namespace sestina {

template <class Exec, class T>
GradientNorm<Exec, T>::GradientNorm(const Arena<Exec, T>& arena, int notes) {
  std::size_t slots = 0;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorHolding& tensor = arena.layout().tensors[i];
    const auto rows = static_cast<std::size_t>(chunk_rows(tensor.local));
    const auto chunks = [&](std::int64_t n) { return (static_cast<std::size_t>(n) + rows - 1) / rows; };
    first_slot_.push_back(slots);
    if (tensor.saved && tensor.owned_rows() > 0) {
      Part part;
      part.gradient = arena.owned_gradient(i);
      part.chunk = rows * static_cast<std::size_t>(tensor.local.cols);
      part.chunks = chunks(tensor.owned_rows());
      part.partial = partials_;
      part.slot = slots + (tensor.row_sharded ? chunks(tensor.owned_begin) : 0);
      part.row_sharded = tensor.row_sharded;
      partials_ += part.chunks;
      parts_.push_back(part);
    }
    slots += tensor.row_sharded ? chunks(tensor.local.rows) : 1;
  }
  first_slot_.push_back(slots);
  squares_.resize(slots + 1);  // the flag is after them
  by_tensor_.resize(arena.size() + 1);
  values_ = HostValues<Exec>("sestina::squares", partials_ + static_cast<std::size_t>(notes) + 1);
}

template <class Exec, class T>
std::vector<double>& GradientNorm<Exec, T>::squares(const Exec& exec) {
  for (const Part& part : parts_)
    squares_of_chunks<Exec, Acc<T>>(exec, part.gradient, part.chunk, values_.at(part.partial, part.chunks));
  values_.fetch(exec, "norm");
  std::fill(squares_.begin(), squares_.end(), 0.0);
  for (const Part& part : parts_)
    for (std::size_t c = 0; c < part.chunks; ++c)
      squares_[part.slot + (part.row_sharded ? c : 0)] += values_[part.partial + c];
  squares_.back() = values_[values_.size() - 1];
  return squares_;
}

template <class Exec, class T>
std::vector<double>& GradientNorm<Exec, T>::by_tensor() {
  for (std::size_t i = 0; i + 1 < by_tensor_.size(); ++i) {
    by_tensor_[i] = 0;
    for (std::size_t slot = first_slot_[i]; slot < first_slot_[i + 1]; ++slot) by_tensor_[i] += squares_[slot];
  }
  by_tensor_.back() = squares_.back();
  return by_tensor_;
}

template <class Exec, class T>
double GradientNorm<Exec, T>::norm() const {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < by_tensor_.size(); ++i) sum += by_tensor_[i];
  return std::sqrt(sum);
}

#define SESTINA_GRADIENT_NORM(Exec, T) template class GradientNorm<Exec, T>;
SESTINA_INSTANTIATE(SESTINA_GRADIENT_NORM)

}  // namespace sestina
