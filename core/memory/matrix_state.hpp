// The state of one matrix: the arrays that its kind lists (kinds.hpp), zero at first, in one allocation, as views by
// name and as StateFields. What need not always be at hand (FieldUse) lies in pages of its own, which a pager may take
// out of memory; the addresses stay.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/deck/kinds.hpp"
#include "core/memory/pager.hpp"
#include "core/memory/state_field.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

template <class Space>
class MatrixState {
 public:
  MatrixState(const Space&, const std::vector<FieldSize>&, std::string path);  // path: "/optimizer/<HF name>"

  // By name; internal error when there is none, or it is of another type.
  Matrix<float, Space> matrix(std::string_view name) const;
  Vector<float, Space> vector(std::string_view name) const;
  Matrix<std::uint8_t, Space> codes(std::string_view name) const;
  std::int64_t& counter(std::string_view name);  // an i64 field of one element, in host memory
  bool has(std::string_view name) const;

  void set_zero(const Space&);  // as it was made; nothing of it may be paged

  std::vector<StateField> fields() const;
  std::size_t bytes() const;
  // The memory of all f32 and u8 fields and rooms so far, which lives as long as somebody holds it.
  std::shared_ptr<const void> storage() const;
  const std::string& path() const { return path_; }

  // Host memory for a result that is no state, in pages of its own where field `like` is; with a device pinned, and
  // always there.
  float* room(const std::string& name, std::string_view like, std::size_t elements);
  struct Paged {
    std::string name;
    FieldUse use = FieldUse::update;
    std::size_t bytes = 0;
    std::shared_ptr<std::byte> memory = {};
  };
  const std::vector<Paged>& paged() const { return paged_; }
  void set_pager(Pager* pager) { pager_ = pager; }

 private:
  const FieldSize& find(std::string_view name, DType) const;
  float* place(std::size_t field) const;
  float* add_pages(const std::string& name, FieldUse, std::size_t elements);

  std::string path_;
  std::vector<FieldSize> sizes_;
  std::vector<std::size_t> offset_;  // elements, in the buffer of the field's type; of paged ones the place in paged_
  Kokkos::View<float*, typename Space::memory_space> floats_;
  Kokkos::View<std::uint8_t*, typename Space::memory_space> codes_;
  std::vector<std::int64_t> counters_;
  std::vector<Paged> paged_;
  std::vector<Kokkos::View<float*, HostSide<Space>>> rooms_;  // where nothing is paged
  Pager* pager_ = nullptr;
};

}  // namespace sestina
