// All tensors of one rank: one allocation per kind, names are views into it. Master weights and gradients are in
// Acc<T>; compute weights are a rounded copy of the matrices in T, or, where T is Acc<T>, the master weights
// themselves. Vectors (norm weights, biases) are computed with in Acc<T> and have no copy. Layout: arena_layout in
// tensor_spec.hpp.
#pragma once
#include <vector>

#include "core/tensor_spec.hpp"
#include "kernels/reduce.hpp"

namespace sestina {

template <class Exec, class T>
class Arena {
 public:
  using A = Acc<T>;
  static constexpr bool shared = std::is_same_v<T, A>;

  // Everything is zero, gaps included. Without gradients: for forward passes alone.
  Arena(std::vector<TensorSpec> specs, bool with_gradients)
      : specs_(std::move(specs)),
        layout_(arena_layout(specs_)),
        matrices_(matrix_arena_layout(specs_)),
        master_("sestina::master", layout_.elements),
        gradient_("sestina::gradient", with_gradients ? layout_.elements : 0),
        compute_("sestina::weights", shared ? 0 : matrices_.elements) {}

  const std::vector<TensorSpec>& specs() const { return specs_; }
  const ArenaLayout& layout() const { return layout_; }
  std::size_t size() const { return specs_.size(); }

  // Flat views of tensor i, (elements); compute is empty where the master weight is computed with.
  Vector<A, Exec> master(std::size_t i) const { return {master_.data() + layout_.offset[i], elements(i)}; }
  Vector<A, Exec> gradient(std::size_t i) const {
    SESTINA_REQUIRE(gradient_.size() > 0, "an arena without gradients");
    return {gradient_.data() + layout_.offset[i], elements(i)};
  }
  Vector<T, Exec> compute(std::size_t i) const {
    if (shared || specs_[i].is_vector()) return {};
    return {compute_.data() + matrices_.offset[i], elements(i)};
  }
  // Where the model reads matrix i.
  const T* matrix(std::size_t i) const {
    if constexpr (shared)
      return master_.data() + layout_.offset[i];
    else
      return compute_.data() + matrices_.offset[i];
  }
  // Whole buffers, gaps included.
  Vector<A, Exec> masters() const { return {master_.data(), master_.size()}; }
  Vector<A, Exec> gradients() const { return {gradient_.data(), gradient_.size()}; }

  // Compute weights from master weights.
  void round_weights(const Exec& exec) const {
    if constexpr (!shared)
      for (std::size_t i = 0; i < size(); ++i)
        if (!specs_[i].is_vector()) convert<Exec, A, T>(exec, master(i), compute(i));
  }

  std::size_t weight_bytes() const { return compute_.size() * sizeof(T); }
  std::size_t master_bytes() const { return master_.size() * sizeof(A); }
  std::size_t gradient_bytes() const { return gradient_.size() * sizeof(A); }

 private:
  std::size_t elements(std::size_t i) const { return static_cast<std::size_t>(specs_[i].elements()); }

  std::vector<TensorSpec> specs_;
  ArenaLayout layout_, matrices_;
  Kokkos::View<A*, typename Exec::memory_space> master_, gradient_;
  Kokkos::View<T*, typename Exec::memory_space> compute_;
};

}  // namespace sestina
