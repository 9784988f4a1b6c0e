// All tensors of one rank: one allocation per kind, names are views into it. Master weights and gradients are in
// Acc<T>; compute weights are a rounded copy of the matrices in T, or, where T is Acc<T>, the master weights
// themselves. Vectors (norm weights, biases) are computed with in Acc<T> and have no copy. Weights that are computed
// with are there for every shard of the rank, master weights for the rows that it owns (core/layout/rank_layout.hpp).
// Frozen tensors lie separately, each in its own type, and have nothing else; so do coded rows, which have gradients in
// addition. Under parallel.shard whole gradients, or whole weights, are there only while their block has its turn in a
// place that several blocks share. What the rank owns of gradients is always there, of weights as their masters alone,
// which are rounded into the place; homed matrices, whose masters another rank has, stay as they are computed with.
#pragma once
#include <type_traits>
#include <vector>

#include "core/layout/rank_layout.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/quantise.hpp"

namespace sestina {

template <class Exec, class T>
class Arena {
 public:
  using A = Acc<T>;
  static constexpr bool shared = std::is_same_v<T, A>;

  // All memory is zero, gaps included. An arena for forward passes alone has no gradients.
  Arena(RankLayout layout, bool with_gradients)
      : layout_(std::move(layout)),
        places_(arena_places(layout_, sizeof(T), sizeof(A))),
        values_("sestina::master", places_.values.elements),
        gradient_("sestina::gradient", with_gradients ? layout_.gradient_elements : 0),
        compute_("sestina::weights", layout_.matrix_elements + places_.matrices.elements),
        vectors_("sestina::weights of vectors", layout_.vector_elements),
        frozen_("sestina::frozen", places_.frozen.elements) {
    for (const TensorHolding& tensor : layout_.tensors) specs_.push_back(tensor.local);
  }
  Arena(const std::vector<TensorSpec>& specs, bool with_gradients) : Arena(lone_layout(specs), with_gradients) {}

  const RankLayout& layout() const { return layout_; }
  const std::vector<TensorSpec>& specs() const { return specs_; }  // those of the shards
  std::size_t size() const { return specs_.size(); }

  // Return flat views of what is owned of tensor i, (owned elements); compute is empty where the master weight is
  // computed with, and where it is rounded for each pass.
  Vector<A, Exec> master(std::size_t i) const {
    return Vector<A, Exec>(value(i) + (kept_whole(at(i)) ? begin(i) : 0), master_elements(at(i)));
  }
  Vector<A, Exec> owned_gradient(std::size_t i) const {
    if (!layout_.gradients_in_turn) return Vector<A, Exec>(gradient(i).data() + begin(i), at(i).owned_elements());
    return Vector<A, Exec>(gradient_.data() + at(i).sum_offset, at(i).owned_elements());
  }
  Vector<T, Exec> owned_compute(std::size_t i) const {
    if (shared || layout_.weights_in_turn || specs_[i].is_vector() || !specs_[i].has_master()) return {};
    return Vector<T, Exec>(matrix(i) + begin(i), at(i).owned_elements());
  }
  // Returns the first of the owned rows of homed matrix i as they are computed with, where they stay.
  T* homed_matrix(std::size_t i) const {
    if (!layout_.weights_in_turn) return matrix(i) + begin(i);
    return compute_.data() + layout_.matrix_elements + places_.matrices.offset[i];
  }
  // Returns the coded rows that are owned of tensor i; none where its rows are not coded.
  CodedRows owned_coded(std::size_t i) const {
    const TensorSpec& spec = specs_[i];
    if (!spec.is_coded()) return {};
    auto* const first = static_cast<std::uint8_t*>(frozen(i));
    return {first + static_cast<std::size_t>(at(i).owned_begin * spec.row_codes()),
            static_cast<std::size_t>(at(i).owned_rows()), static_cast<std::size_t>(spec.cols),
            static_cast<std::size_t>(spec.group)};
  }
  // Return the whole shard of tensor i, (elements).
  Vector<A, Exec> gradient(std::size_t i) const {
    SESTINA_REQUIRE(gradient_.size() > 0 || layout_.gradient_elements == 0, "an arena without gradients");
    return Vector<A, Exec>(gradient_.data() + at(i).gradient_offset, specs_[i].trainable ? elements(specs_[i]) : 0);
  }
  Vector<T, Exec> compute(std::size_t i) const {
    if (shared || specs_[i].is_vector() || !specs_[i].has_master()) return {};
    return Vector<T, Exec>(matrix(i), elements(specs_[i]));
  }
  // Return where the model reads matrix i, and vector i.
  T* matrix(std::size_t i) const {
    if (layout_.weights_in_turn) return compute_.data() + at(i).weight_offset;
    if constexpr (shared)
      return value(i);
    else
      return compute_.data() + places_.matrices.offset[i];
  }
  A* vector(std::size_t i) const { return layout_.weights_in_turn ? vectors_.data() + at(i).weight_offset : value(i); }
  void* frozen(std::size_t i) const { return frozen_.data() + places_.frozen.offset[i]; }
  // Return the first byte of what is computed with, whichever it is, and the bytes of one row.
  void* computed_with(std::size_t i) const {
    if (specs_[i].is_coded()) return frozen(i);
    return specs_[i].is_vector() ? static_cast<void*>(vector(i)) : static_cast<void*>(matrix(i));
  }
  std::size_t row_bytes(std::size_t i) const {
    if (specs_[i].is_coded()) return static_cast<std::size_t>(specs_[i].row_codes());
    return static_cast<std::size_t>(specs_[i].cols) * (specs_[i].is_vector() ? sizeof(A) : sizeof(T));
  }

  // Return whole buffers, gaps included.
  Vector<A, Exec> masters() const { return Vector<A, Exec>(values_.data(), values_.size()); }
  Vector<A, Exec> gradients() const { return Vector<A, Exec>(gradient_.data(), gradient_.size()); }

  // Rounds the master weights that are owned here to compute weights, where these stay.
  void round_weights(const Exec& exec) const {
    if (shared || layout_.weights_in_turn) return;
    if constexpr (!shared)
      for (std::size_t i = 0; i < size(); ++i)
        if (!specs_[i].is_vector() && specs_[i].has_master() && !at(i).homed)
          convert<Exec, A, T>(exec, master(i), owned_compute(i));
  }

  // Copies or rounds the owned rows of tensor i to the place in which its block takes its turn.
  void place_owned(const Exec& exec, std::size_t i) const {
    const std::size_t n = at(i).owned_elements();
    if (n == 0) return;
    const Vector<const A, Exec> master(value(i), n);
    if (specs_[i].is_vector()) return convert<Exec, A, A>(exec, master, Vector<A, Exec>(vector(i) + begin(i), n));
    const Vector<T, Exec> place(matrix(i) + begin(i), n);
    if (at(i).homed)
      convert<Exec, T, T>(exec, Vector<const T, Exec>(homed_matrix(i), n), place);
    else
      convert<Exec, A, T>(exec, master, place);
  }

  std::size_t weight_bytes() const {
    return compute_.size() * sizeof(T) + vectors_.size() * sizeof(A) + frozen_.size();
  }
  std::size_t master_bytes() const { return values_.size() * sizeof(A); }
  std::size_t gradient_bytes() const { return gradient_.size() * sizeof(A); }

 private:
  static std::size_t elements(const TensorSpec& spec) { return static_cast<std::size_t>(spec.elements()); }
  bool kept_whole(const TensorHolding& tensor) const { return keeps_values_whole(layout_, tensor, shared); }
  const TensorHolding& at(std::size_t i) const { return layout_.tensors[i]; }
  std::size_t begin(std::size_t i) const { return static_cast<std::size_t>(at(i).owned_begin * specs_[i].cols); }
  A* value(std::size_t i) const { return values_.data() + places_.values.offset[i]; }

  RankLayout layout_;
  std::vector<TensorSpec> specs_;
  ArenaPlaces places_;
  Kokkos::View<A*, typename Exec::memory_space> values_, gradient_;
  Kokkos::View<T*, typename Exec::memory_space> compute_;  // places of matrices in turn, then what stays
  Kokkos::View<A*, typename Exec::memory_space> vectors_;  // places of vectors in turn
  Kokkos::View<std::byte*, typename Exec::memory_space> frozen_;
};

}  // namespace sestina
