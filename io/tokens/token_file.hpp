// Token sources on disk, fully validated when opened and read by position: Megatron .bin/.idx, llm.c .bin, .npy (raw or
// with a NumPy header), plain text, JSONL. Formats: inputs/README.md. Every defect is Error(bad_data) or
// Error(input_missing). No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/deck/options.hpp"
#include "io/store/digest.hpp"

namespace sestina {

class Tokenizer;

// The tokens around documents (io/tokenizer/special_tokens.hpp).
struct DocumentMarks {
  DocumentMarks(std::int64_t end_id = -1, std::vector<std::int32_t> ahead = {})
      : end(end_id), prefix(std::move(ahead)) {}
  // After each document that is tokenised; in llm.c and .npy streams it is what tells documents apart. -1: that of
  // the tokenizer by name, if any; without one a file of these is one document.
  std::int64_t end;
  std::int64_t begin = -1;           // that documents may begin with; for masking
  std::vector<std::int32_t> prefix;  // before each document that is tokenised
};

// A stream of tokens with document boundaries.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual std::uint64_t size() const = 0;                                                  // tokens
  virtual void read(std::uint64_t begin, std::size_t count, std::int32_t* out) const = 0;  // thread-safe
  // out = document starts in [begin, end), ascending token offsets (offset 0 is always a start).
  virtual void document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const = 0;
  virtual std::string description() const = 0;
  virtual const char* token_type() const { return "i32"; }  // as stored: "u8", "u16", ...
  virtual double bytes_per_token() const { return 0; }      // of the text; 0 when not known
};

// Opens and validates; every token id must lie in [0, vocab_size) (0: not known). tokenizer: for text; null reads
// bytes. llmc, npy and text paths may be folders, llmc and npy paths also shell patterns. poll: called again and again
// while text is tokenised.
std::unique_ptr<TokenSource> open_source(const DataSource&, const Tokenizer* tokenizer, std::int64_t vocab_size,
                                         DocumentMarks marks = {}, const Poll& poll = {});

// Writes a Megatron pair prefix.bin, prefix.idx (u16 below 65500 entries, else i32), document by document;
// temporary names until finish().
class MegatronWriter {
 public:
  MegatronWriter(const std::string& prefix, std::int64_t vocab_size);
  ~MegatronWriter();
  void add_document(const std::int32_t* tokens, std::size_t count);
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sestina
