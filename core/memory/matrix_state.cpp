#include "core/memory/matrix_state.hpp"

#include <algorithm>
#include <utility>

namespace sestina {
namespace {

constexpr std::size_t alignment = 16, code_alignment = 64;  // floats, bytes: a cache line

std::size_t elements(const FieldSize& size) { return static_cast<std::size_t>(size.rows * size.cols); }

}  // namespace

template <class Space>
MatrixState<Space>::MatrixState(const Space& exec, const std::vector<FieldSize>& sizes, std::string path)
    : path_(std::move(path)), sizes_(sizes) {
  std::size_t floats = 0, codes = 0;
  for (const FieldSize& size : sizes_) {
    const bool known = size.dtype == DType::f32 ||
                       (size.use == FieldUse::always && (size.dtype == DType::i64 || size.dtype == DType::u8));
    SESTINA_REQUIRE(known, "{}/{} is {}", path_, size.name, sestina::name(size.dtype));
    if (size.use != FieldUse::always) {
      offset_.push_back(paged_.size());
      add_pages(path_ + "/" + size.name, size.use, elements(size));
    } else if (size.dtype == DType::f32) {
      offset_.push_back(floats);
      floats += (elements(size) + alignment - 1) / alignment * alignment;
    } else if (size.dtype == DType::u8) {
      offset_.push_back(codes);
      codes += (elements(size) + code_alignment - 1) / code_alignment * code_alignment;
    } else {
      offset_.push_back(counters_.size());
      counters_.resize(counters_.size() + elements(size));
    }
  }
  floats_ = decltype(floats_)(Kokkos::view_alloc(exec, "sestina::matrix_state"), floats);
  if (codes > 0) codes_ = decltype(codes_)(Kokkos::view_alloc(exec, "sestina::moment_codes"), codes);
}

template <class Space>
float* MatrixState<Space>::add_pages(const std::string& name, FieldUse use, std::size_t elements) {
  const std::size_t bytes = elements * sizeof(float);
  paged_.push_back({name, use, bytes, is_host<Space> ? page_memory(bytes) : device_addresses(bytes)});
  return reinterpret_cast<float*>(paged_.back().memory.get());
}

template <class Space>
float* MatrixState<Space>::room(const std::string& name, std::string_view like, std::size_t elements) {
  if (elements == 0) return nullptr;
  if (is_host<Space> && find(like, DType::f32).use != FieldUse::always)
    return add_pages(name, FieldUse::refresh, elements);
  rooms_.emplace_back(name, elements);
  return rooms_.back().data();
}

template <class Space>
std::shared_ptr<const void> MatrixState<Space>::storage() const {
  struct All {
    decltype(floats_) floats;
    decltype(codes_) codes;
    std::vector<Paged> paged;
    decltype(rooms_) rooms;
  };
  return std::make_shared<All>(All{floats_, codes_, paged_, rooms_});
}

template <class Space>
float* MatrixState<Space>::place(std::size_t field) const {
  const std::size_t at = offset_[field];
  return sizes_[field].use == FieldUse::always ? floats_.data() + at
                                               : reinterpret_cast<float*>(paged_[at].memory.get());
}

template <class Space>
const FieldSize& MatrixState<Space>::find(std::string_view name, DType dtype) const {
  for (const FieldSize& size : sizes_)
    if (size.name == name && size.dtype == dtype) return size;
  fail(ExitCode::internal, "{} has no field \"{}\" of type {}", path_, name, sestina::name(dtype));
}

template <class Space>
Matrix<float, Space> MatrixState<Space>::matrix(std::string_view name) const {
  const FieldSize& size = find(name, DType::f32);
  const auto field = static_cast<std::size_t>(&size - sizes_.data());
  return Matrix<float, Space>(place(field), static_cast<std::size_t>(size.rows), static_cast<std::size_t>(size.cols));
}

template <class Space>
Vector<float, Space> MatrixState<Space>::vector(std::string_view name) const {
  const Matrix<float, Space> whole = matrix(name);
  return Vector<float, Space>(whole.data(), whole.size());
}

template <class Space>
Matrix<std::uint8_t, Space> MatrixState<Space>::codes(std::string_view name) const {
  const FieldSize& size = find(name, DType::u8);
  return Matrix<std::uint8_t, Space>(codes_.data() + offset_[static_cast<std::size_t>(&size - sizes_.data())],
                                     static_cast<std::size_t>(size.rows), static_cast<std::size_t>(size.cols));
}

template <class Space>
std::int64_t& MatrixState<Space>::counter(std::string_view name) {
  const FieldSize& size = find(name, DType::i64);
  return counters_[offset_[static_cast<std::size_t>(&size - sizes_.data())]];
}

template <class Space>
bool MatrixState<Space>::has(std::string_view name) const {
  for (const FieldSize& size : sizes_)
    if (size.name == name) return true;
  return false;
}

template <class Space>
void MatrixState<Space>::set_zero(const Space& exec) {
  SESTINA_REQUIRE(paged_.empty(), "{}: what is paged does not start over", path_);
  Kokkos::deep_copy(exec, floats_, 0.0f);
  if (codes_.size() > 0) Kokkos::deep_copy(exec, codes_, std::uint8_t{0});
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
    if (size.dtype == DType::f32) {
      field.data = place(i);
      field.pager = pager_;
      field.on_device = !is_host<Space>;
    } else if (size.dtype == DType::u8) {
      field.data = codes_.data() + offset_[i];
      field.on_device = !is_host<Space>;
    } else {
      field.data = const_cast<std::int64_t*>(counters_.data()) + offset_[i];
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
