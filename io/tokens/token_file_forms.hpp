// The parts of open_source(): Megatron's index, tokens that lie back to back, and one function per format. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/store/input_file.hpp"
#include "io/tokens/text_files.hpp"
#include "io/tokens/token_file.hpp"

namespace sestina {

// The Megatron .idx file: where sequences and documents begin in the .bin next to it. Every rule is checked with
// overflow-safe sizes. Layout: inputs/README.md, "Formats".
enum class TokenType { u8, i8, u16, i16, u32, i32, i64 };
std::size_t width(TokenType);
const char* name(TokenType);

struct MegatronIndex {
  TokenType type = TokenType::u16;
  std::uint64_t sequences = 0, documents = 0, tokens = 0;
  std::shared_ptr<const StoredBytes> image;
  std::uint64_t pointers = 0;          // its place in the image: i64 [sequences], bytes
  std::uint64_t document_indices = 0;  // i64 [documents + 1], sequence numbers

  std::uint64_t document_start(std::uint64_t document) const;  // token offset; documents gives tokens
  void document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const;
};

// Checks a whole .idx image against the size of its .bin. Error(bad_data) names `where`.
MegatronIndex parse_megatron_index(std::shared_ptr<const StoredBytes> image, std::uint64_t bin_bytes,
                                   const std::string& where);
// Checks an image in memory, which must outlive the result.
MegatronIndex parse_megatron_index(std::string_view image, std::uint64_t bin_bytes, const std::string& where);

// Tokens that lie back to back as numbers of one width, in one or more parts.
struct TokenPart {
  std::string path;
  std::shared_ptr<const StoredBytes> bytes;
  std::uint64_t begin = 0;  // the place of the first token in the bytes
  std::uint64_t count = 0;
  TokenType type = TokenType::u16;
  std::int64_t limit = std::int64_t{1} << 31;  // ids were found to lie below it
};

// out = tokens [begin, begin + count) of the part. Error(input_missing) when an id is not below the limit any more: the
// file is being written again.
void widen(const TokenPart&, std::uint64_t begin, std::size_t count, std::int32_t* out);

// Checks that every id lies in [0, vocab_size) (vocab_size 0: fits 31 bits), and that there is one. Error(bad_data)
// names file, position, what was got and what is allowed. Sets the limit.
void check_tokens(TokenPart&, std::int64_t vocab_size);
// Returns whether check_tokens would pass.
bool are_ids(TokenPart, std::int64_t vocab_size);

// A source of parts one after the other; a document begins with each part and after each end_of_document (-1: none).
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
  std::vector<std::uint64_t> begins_;  // the first token of each part, and the end
  std::int64_t end_of_document_;
  std::string form_;
};

// open_source() calls one function per format.

// Lists a file, all files with this suffix in a folder, or those that a shell pattern names; sorted.
// Error(input_missing).
std::vector<std::string> list_token_files(const std::string& path, const std::string& suffix);

// Lists a text (or JSONL) file, or those of that form below a folder. Error(input_missing).
std::vector<std::string> list_text_source(const std::string& path, TextForm form);

std::unique_ptr<TokenSource> open_megatron(const std::string& prefix, std::int64_t vocab_size);
std::unique_ptr<TokenSource> open_llmc(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document);
std::unique_ptr<TokenSource> open_npy(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document);
std::unique_ptr<TokenSource> open_text(const std::string& path, std::int64_t vocab_size, const Tokenizer*,
                                       const DocumentMarks&, const Poll&);
std::unique_ptr<TokenSource> open_jsonl(const DataSource&, std::int64_t vocab_size, const Tokenizer*,
                                        const DocumentMarks&, const Poll&);

// The numbers "tokens" and "bytes" of the text that a Megatron pair was made of, in <prefix>.json; zeros when the file
// is not there.
struct TextCounts {
  std::uint64_t tokens = 0, bytes = 0;
};
TextCounts read_text_counts(const std::string& prefix);
void write_text_counts(const std::string& prefix, const TextCounts&, const std::string& tokenizer);

}  // namespace sestina
