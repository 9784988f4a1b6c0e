// safetensors files, one or sharded, read by memory map and checked whole before any tensor is used; written to a
// temporary name and renamed. Rules and limits: inputs/README.md, "Formats". Error(bad_data) on any defect. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sestina {

struct SafeTensor {
  std::string dtype;  // "F32", "BF16", "F16", ...
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class SafeTensors {
 public:
  static SafeTensors open(
      const std::string& path);  // a .safetensors file, an .index.json, or a folder that holds one of them
  // Only checks the header, for fuzzing: parses a whole file image; throws as open does. The image must outlive the
  // result.
  static std::map<std::string, SafeTensor> parse(std::string_view image, const std::string& where);
  ~SafeTensors();
  SafeTensors(SafeTensors&&) noexcept;
  const std::map<std::string, SafeTensor>& tensors() const;
  // Reads a tensor as float32 (from F32, F16, BF16, F64) into out (product of shape elements). Throws if it is missing
  // or of another shape.
  void read_f32(const std::string& name, const std::vector<std::int64_t>& shape, float* out) const;

 private:
  struct State;
  explicit SafeTensors(std::unique_ptr<State>);
  std::unique_ptr<State> state_;
};

struct SafeTensorSource {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
  std::size_t bytes = 0;
};
// Writes model.safetensors, or model-0000i-of-0000K.safetensors with its index when larger than max_shard_bytes.
void write_safetensors(const std::string& folder, const std::vector<SafeTensorSource>&,
                       std::size_t max_shard_bytes = std::size_t{5} << 30);

// The header of a safetensors file: u64 length N, N bytes of JSON, data. Reading is strict: every rule is checked with
// overflow-safe sizes before a pointer is made.
inline constexpr std::size_t safetensors_header_limit = 100'000'000;  // bytes, the limit of the format's own reader

// Returns the bytes of one element; 0 when the dtype is not known.
std::size_t safetensors_element_bytes(std::string_view dtype);

// Checks and indexes a whole file image. Error(bad_data) names the tensor and the broken rule.
std::map<std::string, SafeTensor> parse_safetensors(std::string_view image, const std::string& where);

}  // namespace sestina
