// The copy of a factor that an asynchronous refresh is computed from, as it lies in the state of its matrix and in host
// memory: packed, since a factor is symmetric, in fp32 or bf16.
#pragma once
#include "core/memory/matrix_state.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// d: of a factor (d, d) that is packed; 0: the copy is the matrix as it is, in fp32.
struct SnapshotForm {
  std::size_t d = 0;
  bool in_bf16 = false;
};

// Packs a factor (d, d) into the floats of an array of state. In fp32 no bit is lost.
template <class Space>
void pack_snapshot(const Space& exec, const SnapshotForm& form, Matrix<const float, Space> factor,
                   Matrix<float, Space> floats) {
  const std::size_t numbers = packed_size(form.d);
  if (form.in_bf16)
    pack_symmetric<Space>(exec, factor, bf16_of<Space>(floats, numbers));
  else
    pack_symmetric<Space>(exec, factor, Vector<float, Space>(floats.data(), numbers));
}
template <class Space>
void unpack_snapshot(const Space& exec, const SnapshotForm& form, Matrix<const float, Space> floats,
                     Matrix<float, Space> factor) {
  const std::size_t numbers = packed_size(form.d);
  if (form.in_bf16)
    unpack_symmetric<Space>(exec, bf16_of<Space>(floats, numbers), factor);
  else
    unpack_symmetric<Space>(exec, Vector<const float, Space>(floats.data(), numbers), factor);
}

}  // namespace sestina
