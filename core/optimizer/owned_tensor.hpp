// One tensor as an optimizer sees it: its spec and flat views of what this rank owns of it.
#pragma once
#include "core/tensor_spec.hpp"
#include "kernels/exec.hpp"

namespace sestina {

template <class Exec, class T>
struct OwnedTensor {
  TensorSpec spec;
  Vector<const Acc<T>, Exec> gradient;  // (elements), complete and unclipped
  Vector<Acc<T>, Exec> master;          // (elements)
  Vector<T, Exec> weight;               // (elements) rounded copy the model computes with; empty when it is the master itself
};

}  // namespace sestina
