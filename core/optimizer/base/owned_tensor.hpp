// One tensor as an optimizer sees it: its spec, the slab of it that this rank owns, and flat views of that.
#pragma once
#include <string>

#include "core/layout/tensor_spec.hpp"
#include "core/memory/state_field.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/model/quantise.hpp"

namespace sestina {

template <class Exec, class T>
struct OwnedTensor {
  TensorSpec spec;                      // spec of the whole tensor
  Vector<const Acc<T>, Exec> gradient;  // (elements), complete and unclipped
  Vector<Acc<T>, Exec> master;          // (elements)
  Vector<T, Exec> weight;  // (elements) rounded copy that is computed with; empty: the master is, or is rounded later
  // The slab; row_end 0: all rows, col_end 0: all columns.
  std::int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
  bool sharded = false, saved = true, counted = true;  // see TensorHolding
  CodedRows coded{};                                   // in the place of master and weight
  bool is_whole() const { return row_end == 0 && col_end == 0; }
  std::int64_t rows() const { return row_end == 0 ? spec.rows : row_end - row_begin; }
  std::int64_t cols() const { return col_end == 0 ? spec.cols : col_end - col_begin; }
};

// Returns a state field of the tensor's own shape, of which the slab is held here.
template <class Exec, class T, class A>
StateField field_of(const OwnedTensor<Exec, T>& tensor, std::string path, A* data) {
  const TensorSpec& spec = tensor.spec;
  StateField field;
  field.path = std::move(path);
  field.dtype = sizeof(A) == 8 ? DType::f64 : sizeof(A) == 1 ? DType::u8 : DType::f32;
  field.shape =
      spec.is_vector() ? std::vector<std::int64_t>{spec.rows} : std::vector<std::int64_t>{spec.rows, spec.cols};
  field.row_begin = tensor.row_begin;
  field.row_end = tensor.row_end == 0 ? spec.rows : tensor.row_end;
  field.col_begin = tensor.col_begin;
  field.col_end = tensor.col_end;
  field.saved = tensor.saved;
  field.data = data;
  field.on_device = !Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Exec::memory_space>::accessible;
  return field;
}

// Returns the tensor's coded rows as a field of bytes.
template <class Exec, class T>
StateField coded_field_of(const OwnedTensor<Exec, T>& tensor, std::string path) {
  StateField field = field_of(tensor, std::move(path), tensor.coded.data);
  field.shape = {tensor.spec.rows, tensor.spec.row_codes()};
  return field;
}

// Returns a field with one number for each `block` columns of a row, or numbers of a vector; both are cut between
// blocks.
template <class Exec, class T>
StateField block_field_of(const OwnedTensor<Exec, T>& tensor, std::string path, float* data, std::int64_t block) {
  const auto blocks = [block](std::int64_t cols) { return (cols + block - 1) / block; };
  StateField field = field_of(tensor, std::move(path), data);
  if (tensor.spec.is_vector()) {
    field.shape = {blocks(tensor.spec.rows)};
    field.row_begin = blocks(field.row_begin);
    field.row_end = blocks(field.row_end);
    return field;
  }
  field.shape = {tensor.spec.rows, blocks(tensor.spec.cols)};
  field.col_begin = blocks(field.col_begin);
  field.col_end = blocks(field.col_end);
  return field;
}

}  // namespace sestina
