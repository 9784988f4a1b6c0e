#include "core/memory/matrix_state.hpp"

#include <algorithm>
#include <utility>

namespace sestina {
namespace {

constexpr std::size_t alignment = 16, code_alignment = 64;  // floats, bytes: a cache line

std::size_t elements(const FieldSize& size) { return static_cast<std::size_t>(size.rows * size.cols); }

// Returns the floats that the field takes.
std::size_t floats_in(const FieldSize& size) {
  return size.dtype == DType::bf16 ? bf16_floats(elements(size)) : elements(size);
}

std::size_t page_bytes(const FieldSize& size) {
  return size.dtype == DType::u8 ? elements(size) : floats_in(size) * sizeof(float);
}

float* floats_of(const Page& page) { return reinterpret_cast<float*>(page.memory.get()); }

template <class Space>
bool is_paged(const FieldSize& size) {
  return size.use != FieldUse::always && leaves(memory_of<Space>, size.tier);
}

}  // namespace

template <class Space>
MatrixState<Space>::MatrixState(const Space& exec, const std::vector<FieldSize>& sizes, std::string path)
    : path_(std::move(path)), sizes_(sizes) {
  std::size_t floats = 0, codes = 0;
  for (const FieldSize& size : sizes_) {
    const bool at_hand = size.use == FieldUse::always, moment = size.use == FieldUse::moment;
    const bool known = size.dtype == DType::f32 || size.dtype == DType::bf16 || (at_hand && size.dtype == DType::i64) ||
                       ((at_hand || moment) && size.dtype == DType::u8);
    SESTINA_REQUIRE(known, "{}/{} is {}", path_, size.name, sestina::name(size.dtype));
    if (is_paged<Space>(size)) {
      offset_.push_back(storage_->pages.size());
      add_page(path_ + "/" + size.name, size.use, page_bytes(size), size.tier);
    } else if (size.dtype == DType::f32 || size.dtype == DType::bf16) {
      offset_.push_back(floats);
      floats += (floats_in(size) + alignment - 1) / alignment * alignment;
    } else if (size.dtype == DType::u8) {
      offset_.push_back(codes);
      codes += (elements(size) + code_alignment - 1) / code_alignment * code_alignment;
    } else {
      offset_.push_back(counters_.size());
      counters_.resize(counters_.size() + elements(size));
    }
  }
  Storage& all = *storage_;
  all.floats = decltype(all.floats)(Kokkos::view_alloc(exec, "sestina::matrix_state"), floats);
  if (codes > 0) all.codes = decltype(all.codes)(Kokkos::view_alloc(exec, "sestina::moment_codes"), codes);
}

template <class Space>
const Page& MatrixState<Space>::add_page(const std::string& name, FieldUse use, std::size_t bytes, Tier tier) {
  return storage_->pages.emplace_back(Page{name, use, bytes, block_memory(memory_of<Space>, tier, bytes)});
}

template <class Space>
StateArray<Serial> MatrixState<Space>::room(const std::string& name, std::string_view like, std::size_t elements) {
  if (elements == 0) return {};
  const FieldSize& size = sizes_[find_array(like)];
  if (is_host<Space> && is_paged<Space>(size)) {
    const Page& page = add_page(name, FieldUse::refresh, elements * sizeof(float), size.tier);
    return {Matrix<float, Serial>(floats_of(page), 1, elements), &page};
  }
  const auto& room = storage_->rooms.emplace_back(name, elements);
  return {Matrix<float, Serial>(room.data(), 1, elements), nullptr};
}

template <class Space>
std::size_t MatrixState<Space>::find(std::string_view name, DType dtype) const {
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    if (sizes_[i].name == name && sizes_[i].dtype == dtype) return i;
  fail(ExitCode::internal, "{} has no field \"{}\" of type {}", path_, name, sestina::name(dtype));
}

template <class Space>
std::size_t MatrixState<Space>::find_array(std::string_view name) const {
  const bool is_bf16 = std::any_of(sizes_.begin(), sizes_.end(), [name](const FieldSize& size) {
    return size.name == name && size.dtype == DType::bf16;
  });
  return find(name, is_bf16 ? DType::bf16 : DType::f32);
}

template <class Space>
const Page* MatrixState<Space>::page(std::size_t field) const {
  return is_paged<Space>(sizes_[field]) ? &storage_->pages[offset_[field]] : nullptr;
}

template <class Space>
Matrix<float, Space> MatrixState<Space>::place(std::size_t field) const {
  const Page* const own = page(field);
  const FieldSize& size = sizes_[field];
  float* const data = own != nullptr ? floats_of(*own) : storage_->floats.data() + offset_[field];
  if (size.dtype == DType::bf16) return Matrix<float, Space>(data, 1, floats_in(size));
  return Matrix<float, Space>(data, static_cast<std::size_t>(size.rows), static_cast<std::size_t>(size.cols));
}

template <class Space>
StateArray<Space> MatrixState<Space>::array(std::string_view name) const {
  const std::size_t field = find_array(name);
  return {place(field), page(field)};
}

template <class Space>
Matrix<float, Space> MatrixState<Space>::matrix(std::string_view name) const {
  const std::size_t field = find(name, DType::f32);
  const FieldUse use = sizes_[field].use;
  SESTINA_REQUIRE(use == FieldUse::always || use == FieldUse::moment, "{}/{} may lie elsewhere: read() or write() it",
                  path_, name);
  return place(field);
}

template <class Space>
Vector<float, Space> MatrixState<Space>::vector(std::string_view name) const {
  const Matrix<float, Space> whole = matrix(name);
  return Vector<float, Space>(whole.data(), whole.size());
}

template <class Space>
std::uint8_t* MatrixState<Space>::codes_at(std::size_t field) const {
  const Page* const own = page(field);
  return own != nullptr ? reinterpret_cast<std::uint8_t*>(own->memory.get()) : storage_->codes.data() + offset_[field];
}

template <class Space>
Matrix<std::uint8_t, Space> MatrixState<Space>::codes(std::string_view name) const {
  const std::size_t field = find(name, DType::u8);
  return Matrix<std::uint8_t, Space>(codes_at(field), static_cast<std::size_t>(sizes_[field].rows),
                                     static_cast<std::size_t>(sizes_[field].cols));
}

template <class Space>
std::int64_t& MatrixState<Space>::counter(std::string_view name) {
  return counters_[offset_[find(name, DType::i64)]];
}

template <class Space>
bool MatrixState<Space>::has(std::string_view name) const {
  for (const FieldSize& size : sizes_)
    if (size.name == name) return true;
  return false;
}

template <class Space>
void MatrixState<Space>::set_zero(const Space& exec) {
  Kokkos::deep_copy(exec, storage_->floats, 0.0f);
  for (std::size_t i = 0; i < sizes_.size(); ++i)
    if (const Page* const own = page(i)) {
      const std::size_t floats = (page_bytes(sizes_[i]) + sizeof(float) - 1) / sizeof(float);  // pages are whole
      const auto to = StateArray<Space>(Matrix<float, Space>(floats_of(*own), 1, floats), own).write(Pager::Need::room);
      Kokkos::deep_copy(exec, to.view(), 0.0f);
    }
  if (storage_->codes.size() > 0) Kokkos::deep_copy(exec, storage_->codes, std::uint8_t{0});
  std::fill(counters_.begin(), counters_.end(), 0);
}

template <class Space>
std::vector<StateField> MatrixState<Space>::fields() const {
  std::vector<StateField> fields;
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const FieldSize& size = sizes_[i];
    StateField field;
    field.path = path_ + "/" + size.name;
    field.dtype = size.dtype;
    field.shape = size.cols == 1 ? std::vector<std::int64_t>{size.rows} : std::vector{size.rows, size.cols};
    field.row_end = size.rows;
    field.optional = size.optional;
    field.of_basis = size.of_basis;
    if (size.dtype == DType::f32 || size.dtype == DType::bf16) {
      field.data = place(i).data();
      if (const Page* const own = page(i)) field.pager = own->pager.get();
      field.on_device = !is_host<Space>;
    } else if (size.dtype == DType::u8) {
      field.data = codes_at(i);
      if (const Page* const own = page(i)) field.pager = own->pager.get();
      field.on_device = !is_host<Space>;
    } else {
      field.data = counters_.data() + offset_[i];
    }
    fields.push_back(std::move(field));
  }
  return fields;
}

template <class Space>
std::size_t MatrixState<Space>::bytes() const {
  std::size_t sum = 0;
  for (const FieldSize& size : sizes_) sum += elements(size) * size_of(size.dtype);
  return sum;
}

#define SESTINA_MATRIX_STATE(Space) template class MatrixState<Space>;
SESTINA_INSTANTIATE_LANES(SESTINA_MATRIX_STATE)

}  // namespace sestina
