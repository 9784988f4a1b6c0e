// Matrices of one shape that lie anywhere, as operands of products of them all (Gemm::batch): two arrays of pointers to
// them, since a device's library reads them where it computes, and the host where it takes them one by one.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

// Matrices (rows, cols) whose rows lie `apart` elements from one another; what it points to must outlive what reads it.
template <class T, class Exec>
struct MatrixList {
  T* const* on_host = nullptr;   // (count), in host memory
  T* const* in_space = nullptr;  // the same pointers in the memory of the space
  std::size_t count = 0, rows = 0, cols = 0, apart = 0;

  Matrix<T, Exec> operator[](std::size_t i) const {
    const Matrix<T, Exec> wide(on_host[i], rows, apart);
    return Kokkos::subview(wide, std::make_pair(std::size_t{0}, rows), std::make_pair(std::size_t{0}, cols));
  }
  MatrixList<const T, Exec> read() const { return {on_host, in_space, count, rows, cols, apart}; }
};

// The pointers of several lists, all in one array.
template <class T, class Exec>
class MatrixTable {
 public:
  // Adds a list and returns its number. apart: of their rows; 0: they have no padding.
  std::size_t add(const std::vector<T*>& matrices, std::size_t rows, std::size_t cols, std::size_t apart = 0) {
    lists_.push_back({pointers_.size(), matrices.size(), rows, cols, apart > 0 ? apart : cols});
    pointers_.insert(pointers_.end(), matrices.begin(), matrices.end());
    return lists_.size() - 1;
  }
  // Adds the list of pointer_of(i) for these numbers i.
  template <class PointerOf>
  std::size_t add_each(const std::vector<std::size_t>& numbers, const PointerOf& pointer_of, std::size_t rows,
                       std::size_t cols, std::size_t apart = 0) {
    std::vector<T*> matrices;
    for (const std::size_t i : numbers) matrices.push_back(pointer_of(i));
    return add(matrices, rows, cols, apart);
  }
  // Copies what was added to the space. Fences.
  void finish(const char* label) {
    std::vector<std::uintptr_t> numbers;  // a view of pointers would be one of two dimensions
    for (T* const pointer : pointers_) numbers.push_back(reinterpret_cast<std::uintptr_t>(pointer));
    in_space_ = table_in_space<Exec>(label, numbers);
  }
  bool empty() const { return pointers_.empty(); }
  MatrixList<T, Exec> operator[](std::size_t list) const {
    const Part& part = lists_[list];
    const auto in_space = reinterpret_cast<T* const*>(in_space_.data());
    return {pointers_.data() + part.begin, in_space + part.begin, part.count, part.rows, part.cols, part.apart};
  }

 private:
  struct Part {
    std::size_t begin = 0, count = 0, rows = 0, cols = 0, apart = 0;
  };
  std::vector<T*> pointers_;
  std::vector<Part> lists_;
  Kokkos::View<std::uintptr_t*, typename Exec::memory_space> in_space_;  // the pointers
};

// Requires as many A and B as C.
template <class A, class B, class C>
void require_equal_counts(const A& a, const B& b, const C& c) {
  SESTINA_REQUIRE(a.count == c.count && b.count == c.count, "products of {} matrices and {} into {}", a.count, b.count,
                  c.count);
}

}  // namespace sestina
