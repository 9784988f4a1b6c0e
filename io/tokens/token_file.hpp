// Token sources on disk: the kind of a file by its bytes, the sources themselves, and one digest of all that a run
// reads. No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/deck/options.hpp"
#include "io/store/digest.hpp"
#include "io/store/input_file.hpp"

namespace sestina {

// The kind of a data file follows from its bytes, whatever it is called. All errors are Error(input_missing) with the
// name, the kind and what to do.

// A kind, "xz data", "a Parquet file", "a Git LFS pointer" ..., and what to do about it; empty for kinds that are not
// known, as text and plain numbers. kind_of looks at the beginning and the end of a file.
struct FileKind {
  std::string_view name, help;
};
FileKind kind_of(const StoredBytes&);

// True for packed text that is read: gzip, and zstd also where a frame to be skipped comes first.
bool is_gzip(std::string_view head);
bool is_zstd(std::string_view head);

// Refuses a file of a known kind where numbers are expected.
void refuse_foreign(const StoredBytes&, const std::string& path);
// Refuses the same where text is expected, and text in UTF-16 or UTF-32.
void refuse_non_text(const StoredBytes&, const std::string& path);
// Refuses the same, zero bytes, and bytes that are no UTF-8, whose place it names. poll: called every few megabytes.
void require_utf8(const StoredBytes&, const std::string& path, const Poll& poll = {});

// The byte order mark of UTF-8, which belongs to no document.
constexpr std::string_view utf8_mark("\xEF\xBB\xBF");

// The contents of a file of JSON by its first lines: objects, each on one line; an array; one object, on one line or
// over several. A file that is no JSON counts as lines.
enum class JsonValues { lines, array, one, spread };
JsonValues json_values(std::string_view text);
// Refuses an array, and an object over several lines.
void require_json_lines(std::string_view text, const std::string& path);

// Token sources on disk, fully validated when opened and read by position: Megatron .bin/.idx, llm.c .bin, .npy (raw or
// with a NumPy header), plain text, JSONL. Formats: inputs/README.md. Every defect is Error(bad_data) or
// Error(input_missing).

class Tokenizer;

// The tokens around documents (io/tokenizer/tokenizer.hpp).
struct DocumentMarks {
  DocumentMarks(std::int64_t end_id = -1, std::vector<std::int32_t> ahead = {})
      : end(end_id), prefix(std::move(ahead)) {}
  // The id after each document that is tokenised; in llm.c and .npy streams it tells documents apart. -1: that of the
  // tokenizer by name, if any; without one such a file is one document.
  std::int64_t end;
  std::int64_t begin = -1;           // the id that documents may begin with, for masking
  std::vector<std::int32_t> prefix;  // ids before each document that is tokenised
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
  virtual const char* token_type() const { return "i32"; }  // the type as stored: "u8", "u16", ...
  virtual double bytes_per_token() const { return 0; }      // bytes of the text per token; 0 when not known
};

// Opens and validates a source; every token id must lie in [0, vocab_size) (0: not known). tokenizer: for text; null
// reads bytes. llmc, npy and text paths may be folders, llmc and npy paths also shell patterns. poll: called again and
// again while text is tokenised.
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

// One digest stands for the contents of a run's files, whatever they are called and wherever they lie.

// Digests the files that open_source() would read: index files whole, others as digest_files() does. It throws the same
// errors.
FileDigest digest_source(const DataSource&, const Poll& poll = {});
// Digests configuration and weights of a Hugging Face folder.
FileDigest digest_hf_folder(const std::string& folder, const Poll& poll = {});

}  // namespace sestina
