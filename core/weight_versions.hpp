// Weights of the last few updates, for passes of an asynchronous pipeline that began under them: copies of what a
// stage computes with and trains, one after another in a ring. Version v is the weights after v updates of the stage;
// the newest are the stage's own. What is frozen has no versions: a pipeline drains where it changes.
#pragma once
#include <string>
#include <vector>

#include "core/memory/state_field.hpp"
#include "core/model/weights.hpp"

namespace sestina {

template <class Exec, class T>
class WeightVersions {
 public:
  // depth: how many before the newest are kept; 0: none.
  WeightVersions(const ModelConfig&, LayerRange, const Arena<Exec, T>&, int depth);

  // The arena's weights, complete on this rank, are `version`; the oldest copy makes room.
  void keep(const Exec&, std::int64_t version);
  const Weights<Exec, T>& of(std::int64_t version) const {  // one of the last `depth` that were kept
    return views_[place(version)];
  }
  // Those of tensor i of the arena, flat: one of the two is empty, or both where it is frozen.
  Vector<T, Exec> matrix_of(std::int64_t version, std::size_t i) const {
    const TensorSpec& spec = arena_.specs()[i];
    return !has_matrix(spec) ? Vector<T, Exec>() : Vector<T, Exec>(matrix(version, i), elements(spec));
  }
  Vector<Acc<T>, Exec> vector_of(std::int64_t version, std::size_t i) const {
    const TensorSpec& spec = arena_.specs()[i];
    return has_vector(spec) ? Vector<Acc<T>, Exec>(vector(version, i), elements(spec)) : Vector<Acc<T>, Exec>();
  }
  int depth() const { return static_cast<int>(views_.size()); }

  // The copy of a version as state, "<prefix>/<HF name>": what this rank computes with. saved: by this rank, where
  // several hold the same.
  std::vector<StateField> fields(std::int64_t version, const std::string& prefix, bool saved) const;

 private:
  // First element of tensor i (of the arena) in a copy.
  T* matrix(std::int64_t version, std::size_t i) const { return matrices_.data() + matrix_at(version, i); }
  Acc<T>* vector(std::int64_t version, std::size_t i) const { return vectors_.data() + vector_at(version, i); }
  static bool has_matrix(const TensorSpec& spec) { return spec.trainable && !spec.is_vector(); }
  static bool has_vector(const TensorSpec& spec) { return spec.trainable && spec.is_vector(); }
  static std::size_t elements(const TensorSpec& spec) { return static_cast<std::size_t>(spec.elements()); }
  std::size_t place(std::int64_t version) const { return static_cast<std::size_t>(version) % views_.size(); }
  std::size_t matrix_at(std::int64_t version, std::size_t i) const {
    return place(version) * matrices_in_one_ + offset_[i];
  }
  std::size_t vector_at(std::int64_t version, std::size_t i) const {
    return place(version) * vectors_in_one_ + offset_[i];
  }

  Arena<Exec, T> arena_;             // views of the newest weights
  std::vector<std::size_t> offset_;  // by tensor, among the matrices or the vectors of a copy
  std::size_t matrices_in_one_ = 0, vectors_in_one_ = 0;
  Kokkos::View<T*, typename Exec::memory_space> matrices_;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> vectors_;
  std::vector<Weights<Exec, T>> views_;
};

}  // namespace sestina
