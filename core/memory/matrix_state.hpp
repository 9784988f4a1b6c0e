// The state of one matrix: the arrays that its kind lists (kinds.hpp), zero at first, in one allocation, by name and as
// StateFields. What need not always be at hand (FieldUse) may lie in pages of its own, which a pager takes out of
// memory; the addresses stay. Such an array is read by a const view, and written by the view of a guard alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/memory/pager.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

template <class Space>
inline constexpr MemorySpace memory_of = is_host<Space> ? MemorySpace::host : MemorySpace::device;

// An array of state, found once. An empty one is (0, 0).
template <class Space>
class StateArray {
 public:
  StateArray() = default;
  // page is the one that it lies in; null: it is always at hand.
  StateArray(Matrix<float, Space> view, const Page* page) : view_(view), page_(page) {}

  std::size_t extent(int dim) const { return view_.extent(static_cast<unsigned>(dim)); }
  std::size_t size() const { return view_.size(); }
  // Returns a view that is good while its matrix is updated, or as long as a pin() of it lives.
  Matrix<const float, Space> read() const { return view_; }
  Pin pin() const { return {pager(), view_.data(), Pager::Need::reading}; }
  WriteGuard<Matrix<float, Space>> write(Pager::Need need = Pager::Need::contents) const {
    return {page_ != nullptr && page_->written ? nullptr : pager(), view_.data(), need, view_};
  }
  // Returns its first elements as (rows, cols), for another space with the same memory.
  template <class Other>
  StateArray<Other> as(std::size_t rows, std::size_t cols) const {
    return {Matrix<float, Other>(view_.data(), rows, cols), page_};
  }

 private:
  Pager* pager() const { return page_ == nullptr || size() == 0 ? nullptr : page_->pager.get(); }

  Matrix<float, Space> view_;
  const Page* page_ = nullptr;
};

// Returns the floats in whose memory so many numbers of bf16 lie, and these numbers.
constexpr std::size_t bf16_floats(std::size_t numbers) { return (numbers + 1) / 2; }
template <class Space>
Vector<bf16, Space> bf16_of(Matrix<float, Space> floats, std::size_t numbers) {
  return Vector<bf16, Space>(reinterpret_cast<bf16*>(floats.data()), numbers);
}
template <class Space>
Vector<const bf16, Space> bf16_of(Matrix<const float, Space> floats, std::size_t numbers) {
  return Vector<const bf16, Space>(reinterpret_cast<const bf16*>(floats.data()), numbers);
}

template <class Space>
class MatrixState {
 public:
  MatrixState(const Space&, const std::vector<FieldSize>&, std::string path);  // path: "/optimizer/<HF name>"

  // Returns an array by name; internal error when there is none, or it is of another type. One of bf16 is seen as the
  // floats that it lies in, (1, bf16_floats), of which bf16_of() makes its numbers.
  StateArray<Space> array(std::string_view name) const;
  Matrix<const float, Space> read(std::string_view name) const { return array(name).read(); }
  WriteGuard<Matrix<float, Space>> write(std::string_view name, Pager::Need need = Pager::Need::contents) const {
    return array(name).write(need);
  }
  // These return arrays that are always at hand, or moments, whose views are good while their matrix is updated
  // (FieldUse); internal error for others, wherever they lie in this run.
  Matrix<float, Space> matrix(std::string_view name) const;
  Vector<float, Space> vector(std::string_view name) const;
  Matrix<std::uint8_t, Space> codes(std::string_view name) const;
  std::int64_t& counter(std::string_view name);  // an i64 field of one element, in host memory
  bool has(std::string_view name) const;

  void set_zero(const Space&);  // back to the initial state, wherever it lies

  std::vector<StateField> fields() const;
  std::size_t bytes() const;
  // Returns the memory of all f32, bf16 and u8 fields and rooms, which lives as long as somebody holds it.
  std::shared_ptr<const void> storage() const { return storage_; }
  const std::string& path() const { return path_; }

  // Returns host memory for a result that is no state, (1, elements), in pages of its own where field `like` is; for a
  // device the memory is pinned, and always there.
  StateArray<Serial> room(const std::string& name, std::string_view like, std::size_t elements);
  Pages& pages() { return storage_->pages; }

 private:
  struct Storage {
    Kokkos::View<float*, typename Space::memory_space> floats;
    Kokkos::View<std::uint8_t*, typename Space::memory_space> codes;
    Pages pages;
    std::vector<Kokkos::View<float*, HostSide<Space>>> rooms;  // in the place of pages where nothing is paged
  };

  std::size_t find(std::string_view name, DType) const;
  std::size_t find_array(std::string_view name) const;  // of f32 or bf16
  const Page* page(std::size_t field) const;
  Matrix<float, Space> place(std::size_t field) const;
  const Page& add_page(const std::string& name, FieldUse, std::size_t bytes, Tier);
  std::uint8_t* codes_at(std::size_t field) const;

  std::string path_;
  std::vector<FieldSize> sizes_;
  std::vector<std::size_t>
      offset_;  // elements, in the buffer of the field's type; for a paged field the number of the page
  std::vector<std::int64_t> counters_;
  std::shared_ptr<Storage> storage_ = std::make_shared<Storage>();
};

}  // namespace sestina
