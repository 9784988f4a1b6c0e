// The header of a safetensors file: u64 length N, N bytes of JSON, data. Strict: every rule is checked with
// overflow-safe sizes before a pointer is made. No Kokkos, no files.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "io/hf/safetensors.hpp"

namespace sestina {

inline constexpr std::size_t safetensors_header_limit = 100'000'000;  // bytes, the limit of the format's own reader

// Bytes of one element; 0 when the dtype is not known.
std::size_t safetensors_element_bytes(std::string_view dtype);

// Checks and indexes a whole file image. Error(bad_data) names the tensor and the broken rule.
std::map<std::string, SafeTensor> parse_safetensors(std::string_view image, const std::string& where);

}  // namespace sestina
