// One tensor as an optimizer sees it: its spec and flat views of what this rank owns of it.
#pragma once
#include <string>

#include "core/state_field.hpp"
#include "core/tensor_spec.hpp"
#include "kernels/exec.hpp"

namespace sestina {

template <class Exec, class T>
struct OwnedTensor {
  TensorSpec spec;
  Vector<const Acc<T>, Exec> gradient;  // (elements), complete and unclipped
  Vector<Acc<T>, Exec> master;          // (elements)
  Vector<T, Exec> weight;  // (elements) rounded copy the model computes with; empty when it is the master itself
};

// A state field of the tensor's own shape, all rows held here.
template <class Exec, class A>
StateField field_of(const TensorSpec& spec, std::string path, A* data) {
  StateField field;
  field.path = std::move(path);
  field.dtype = sizeof(A) == 8 ? DType::f64 : DType::f32;
  field.shape =
      spec.is_vector() ? std::vector<std::int64_t>{spec.rows} : std::vector<std::int64_t>{spec.rows, spec.cols};
  field.row_end = spec.rows;
  field.data = data;
  field.on_device = !Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;
  return field;
}

}  // namespace sestina
