// The Megatron .idx file: where sequences and documents begin in the .bin next to it. Every rule is checked with
// overflow-safe sizes. Layout: inputs/README.md, "Formats". No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/store/stored_bytes.hpp"

namespace sestina {

enum class TokenType { u8, i8, u16, i16, u32, i32, i64 };
std::size_t width(TokenType);
const char* name(TokenType);

struct MegatronIndex {
  TokenType type = TokenType::u16;
  std::uint64_t sequences = 0, documents = 0, tokens = 0;
  std::shared_ptr<const StoredBytes> image;
  std::uint64_t pointers = 0;          // where in the image: i64 [sequences], bytes
  std::uint64_t document_indices = 0;  // i64 [documents + 1], sequence numbers

  std::uint64_t document_start(std::uint64_t document) const;  // token offset; documents gives tokens
  void document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const;
};

// Checks a whole .idx image against the size of its .bin. Error(bad_data) names `where`.
MegatronIndex parse_megatron_index(std::shared_ptr<const StoredBytes> image, std::uint64_t bin_bytes,
                                   const std::string& where);
// The same of memory, which must outlive the result.
MegatronIndex parse_megatron_index(std::string_view image, std::uint64_t bin_bytes, const std::string& where);

}  // namespace sestina
