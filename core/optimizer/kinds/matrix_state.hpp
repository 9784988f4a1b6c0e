// The state of one matrix: the arrays that its kind lists (kinds.hpp), zero at first, in one allocation, as views by
// name and as StateFields.
#pragma once
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"
#include "core/layout/state_field.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

template <class Space>
class MatrixState {
 public:
  MatrixState(const Space&, const std::vector<FieldSize>&, std::string path);  // path: "/optimizer/<HF name>"

  // By name; internal error when there is none, or it is of another type.
  Matrix<float, Space> matrix(std::string_view name) const;
  Vector<float, Space> vector(std::string_view name) const;
  std::int64_t& counter(std::string_view name);  // an i64 field of one element, in host memory
  bool has(std::string_view name) const;

  std::vector<StateField> fields() const;
  std::size_t bytes() const;
  // The memory of all f32 fields, which lives as long as somebody holds it.
  Kokkos::View<float*, typename Space::memory_space> storage() const { return floats_; }
  const std::string& path() const { return path_; }

 private:
  const FieldSize& find(std::string_view name, DType) const;

  std::string path_;
  std::vector<FieldSize> sizes_;
  std::vector<std::size_t> offset_;  // elements, in the buffer of the field's type
  Kokkos::View<float*, typename Space::memory_space> floats_;
  std::vector<std::int64_t> counters_;
};

}  // namespace sestina
