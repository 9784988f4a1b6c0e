#include "io/hf/safetensors.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

constexpr std::pair<std::string_view, std::size_t> dtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};

struct Entry {
  std::string name, dtype;
  std::vector<std::uint64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Reads {"name": {"dtype": text, "shape": [n, ...], "data_offsets": [begin, end]}, ..., "__metadata__": {text: text}}
// as a stream of events, so that a hostile header is refused where it goes wrong and no tree is built of it.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& where) : where_(where) {}
  std::vector<Entry> take() { return std::move(entries_); }

  bool start_object(std::size_t) override {
    if (in_list_ || depth_ == 2) refuse("an object");
    if (++depth_ == 2 && !metadata_) entries_.emplace_back().name = name_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1 && !metadata_) {
      const Entry& entry = entries_.back();
      if (!entry.has_dtype || !entry.has_shape || !entry.has_offsets)
        fail(ExitCode::bad_data, "{}: tensor '{}' lacks one of dtype, shape, data_offsets", where_, name_);
    }
    return true;
  }
  bool key(std::string& text) override {
    if (depth_ == 1) {
      name_ = text;
      metadata_ = text == "__metadata__";
      if (metadata_ && std::exchange(has_metadata_, true)) fail(ExitCode::bad_data, "{}: two __metadata__", where_);
      return true;
    }
    key_ = text;
    if (!metadata_) start_field();
    return true;
  }
  bool string(std::string& text) override {
    if (metadata_ && depth_ == 2) return true;
    if (depth_ != 2 || key_ != "dtype") refuse("a text");
    entries_.back().dtype = text;
    return true;
  }
  bool number_unsigned(std::uint64_t value) override {
    if (!in_list_) refuse("a number");
    auto& list = key_ == "shape" ? entries_.back().shape : entries_.back().offsets;
    if (list.size() == 64) refuse("a list of more than 64 numbers");
    list.push_back(value);
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || metadata_ || in_list_ || key_ == "dtype") refuse("a list");
    return in_list_ = true;
  }
  bool end_array() override {
    in_list_ = false;
    return true;
  }
  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(std::int64_t) override { return refuse("a negative number"); }
  bool number_float(double, const std::string&) override { return refuse("a fraction or a number beyond 64 bits"); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail(ExitCode::bad_data, "{}: header is not valid JSON in UTF-8, at byte {} of the header", where_, position);
  }

 private:
  void start_field() {
    Entry& entry = entries_.back();
    bool Entry::*flag = key_ == "dtype"          ? &Entry::has_dtype
                        : key_ == "shape"        ? &Entry::has_shape
                        : key_ == "data_offsets" ? &Entry::has_offsets
                                                 : nullptr;
    if (flag == nullptr)
      fail(ExitCode::bad_data, "{}: tensor '{}' has the key '{}', allowed: dtype, shape, data_offsets", where_, name_,
           key_);
    if (std::exchange(entry.*flag, true))
      fail(ExitCode::bad_data, "{}: tensor '{}' has '{}' twice", where_, name_, key_);
  }
  [[noreturn]] bool refuse(const char* what) const {
    fail(ExitCode::bad_data, "{}: header has {} where none is allowed (tensor '{}', key '{}')", where_, what, name_,
         key_);
  }

  const std::string& where_;
  std::vector<Entry> entries_;
  std::string name_, key_;
  int depth_ = 0;
  bool metadata_ = false, has_metadata_ = false, in_list_ = false;
};

// Returns the bytes by shape and dtype; fails on overflow even when a later dimension is zero.
std::uint64_t size_of(const Entry& entry, const std::string& where) {
  const std::uint64_t element = safetensors_element_bytes(entry.dtype);
  if (element == 0)
    fail(ExitCode::bad_data, "{}: tensor '{}' has the unknown dtype '{}'", where, entry.name, entry.dtype);
  std::uint64_t bytes = element;
  for (const std::uint64_t extent : entry.shape)
    if (extent > std::uint64_t{std::numeric_limits<std::int64_t>::max()} ||
        __builtin_mul_overflow(bytes, extent, &bytes))
      fail(ExitCode::bad_data, "{}: tensor '{}' has shape [{}], its size is beyond 64 bits", where, entry.name,
           fmt::join(entry.shape, ", "));
  return bytes;
}

// Checks that in the order of the offsets every tensor begins where the one before ends, and the last ends with the
// file.
void check_layout(std::vector<Entry>& entries, std::uint64_t data_bytes, const std::string& where) {
  for (const Entry& entry : entries)
    if (entry.offsets.size() != 2)
      fail(ExitCode::bad_data, "{}: tensor '{}' has {} data_offsets, need 2", where, entry.name, entry.offsets.size());
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.offsets < b.offsets; });
  std::uint64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.offsets[0] != end)
      fail(ExitCode::bad_data, "{}: tensor '{}' begins at {}, the one before ends at {}: {}", where, entry.name,
           entry.offsets[0], end, entry.offsets[0] > end ? "a hole" : "an overlap");
    const std::uint64_t bytes = size_of(entry, where);
    if (entry.offsets[1] < end || entry.offsets[1] - end != bytes)
      fail(ExitCode::bad_data, "{}: tensor '{}' has data_offsets [{}, {}], its shape and dtype need {} bytes", where,
           entry.name, entry.offsets[0], entry.offsets[1], bytes);
    end = entry.offsets[1];
  }
  if (end != data_bytes)
    fail(ExitCode::bad_data, "{}: tensors take {} bytes, the file holds {} after its header", where, end, data_bytes);
}

}  // namespace

std::size_t safetensors_element_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : dtypes)
    if (name == dtype) return bytes;
  return 0;
}

std::map<std::string, SafeTensor> parse_safetensors(std::string_view image, const std::string& where) {
  std::uint64_t header_bytes = 0;
  if (image.size() < sizeof header_bytes)
    fail(ExitCode::bad_data, "{}: {} bytes, a safetensors file has at least 8", where, image.size());
  std::memcpy(&header_bytes, image.data(), sizeof header_bytes);
  const std::size_t rest = image.size() - sizeof header_bytes;
  if (header_bytes > safetensors_header_limit)
    fail(ExitCode::bad_data, "{}: header of {} bytes, allowed are {}", where, header_bytes, safetensors_header_limit);
  if (header_bytes > rest)
    fail(ExitCode::bad_data, "{}: header of {} bytes, the file holds {} after its length", where, header_bytes, rest);
  const std::string_view header = image.substr(sizeof header_bytes, header_bytes);
  if (header.empty() || header.front() != '{') fail(ExitCode::bad_data, "{}: header does not begin with '{{'", where);

  HeaderReader reader(where);
  nlohmann::json::sax_parse(header, &reader);
  std::vector<Entry> entries = reader.take();
  check_layout(entries, rest - header_bytes, where);

  std::map<std::string, SafeTensor> tensors;
  const auto* data = reinterpret_cast<const std::byte*>(image.data()) + sizeof header_bytes + header_bytes;
  for (const Entry& entry : entries) {
    SafeTensor tensor;
    tensor.dtype = entry.dtype;
    tensor.shape.assign(entry.shape.begin(), entry.shape.end());
    tensor.data = data + entry.offsets[0];
    tensor.bytes = entry.offsets[1] - entry.offsets[0];
    if (!tensors.emplace(entry.name, std::move(tensor)).second)
      fail(ExitCode::bad_data, "{}: tensor '{}' occurs twice", where, entry.name);
  }
  return tensors;
}

}  // namespace sestina
