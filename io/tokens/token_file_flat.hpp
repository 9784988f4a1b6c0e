// Tokens that lie back to back as numbers of one width, in one or more parts. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/store/stored_bytes.hpp"
#include "io/tokens/token_file.hpp"
#include "io/tokens/token_file_index.hpp"

namespace sestina {

struct TokenPart {
  std::string path;
  std::shared_ptr<const StoredBytes> bytes;
  std::uint64_t begin = 0;  // where in the bytes
  std::uint64_t count = 0;
  TokenType type = TokenType::u16;
  std::int64_t limit = std::int64_t{1} << 31;  // ids were found to lie below it
};

// out = tokens [begin, begin + count) of the part. Error(input_missing) when an id is not below the limit any more: the
// file is being written again.
void widen(const TokenPart&, std::uint64_t begin, std::size_t count, std::int32_t* out);

// Every id must lie in [0, vocab_size) (vocab_size 0: must fit 31 bits), and there must be one. Error(bad_data) names
// file, position, what was got and what is allowed. Sets the limit.
void check_tokens(TokenPart&, std::int64_t vocab_size);
// The same as an answer.
bool are_ids(TokenPart, std::int64_t vocab_size);

// Parts one after the other; a document begins with each part and after each end_of_document (-1: none).
class FlatTokens : public TokenSource {
 public:
  FlatTokens(std::vector<TokenPart> parts, std::int64_t end_of_document, std::string form);
  std::uint64_t size() const override { return begins_.back(); }
  void read(std::uint64_t begin, std::size_t count, std::int32_t* out) const override;
  void document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const override;
  std::string description() const override;
  const char* token_type() const override { return name(parts_.front().type); }
  double bytes_per_token() const override { return parts_.front().type == TokenType::u8 ? 1 : 0; }

 private:
  std::size_t part_of(std::uint64_t token) const;
  std::vector<TokenPart> parts_;
  std::vector<std::uint64_t> begins_;  // of each part, and the end
  std::int64_t end_of_document_;
  std::string form_;
};

}  // namespace sestina
