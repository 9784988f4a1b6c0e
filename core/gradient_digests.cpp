#include "core/gradient_digests.hpp"

#include "kernels/blas/bits.hpp"

namespace sestina {

template <class Exec, class T>
GradientDigests<Exec, T>::GradientDigests(const Arena<Exec, T>& arena) {
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorSpec& spec = arena.specs()[i];
    if (!spec.trainable) continue;
    const std::size_t offset = arena.layout().tensors[i].gradient_offset;
    tensors_.push_back({spec.name, offset, arena.gradient(i).size(), spec.block, spec.of_norm});
  }
  digests_ = decltype(digests_)("sestina::digests", tensors_.size());
  host_.resize(tensors_.size());
}

template <class Exec, class T>
std::vector<std::string> GradientDigests<Exec, T>::names() const {
  std::vector<std::string> names;
  for (const Tensor& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

template <class Exec, class T>
void GradientDigests<Exec, T>::begin(std::optional<int> digests, const std::optional<BitFlip>& flip) {
  digested_ = digests;
  flip_ = flip;
}

template <class Exec, class T>
void GradientDigests<Exec, T>::finished(const Exec& exec, int block, Part part, Acc<T>* gradients,
                                        std::optional<int> micro) {
  const bool takes = digested_ && micro.value_or(*digested_) == *digested_;
  const bool flips = flip_ && micro.value_or(flip_->micro) == flip_->micro;
  if (!takes && !flips) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Tensor& tensor = tensors_[i];
    if (tensor.block != block || (part != Part::all && (part == Part::input) != tensor.of_norm)) continue;
    const std::size_t bytes = tensor.elements * sizeof(Acc<T>);
    Acc<T>* const gradient = gradients + tensor.offset;
    if (flips && flip_->tensor % tensors_.size() == i)
      flip_bits<Exec>(exec, gradient, bytes, sizeof(float), flip_->place, flip_->bits);
    if (takes)
      digest_bits<Exec>(exec, gradient, bytes, sizeof(float), Vector<std::uint64_t, Exec>(digests_.data() + i, 1));
  }
}

template <class Exec, class T>
std::span<const std::uint64_t> GradientDigests<Exec, T>::fetch(const Exec& exec) {
  Kokkos::deep_copy(exec, Vector<std::uint64_t, Host>(host_.data(), host_.size()), digests_);
  exec.fence("digests");
  return host_;
}

#define SESTINA_GRADIENT_DIGESTS(Exec, T) template class GradientDigests<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_GRADIENT_DIGESTS)

}  // namespace sestina
