// Text on disk: unpacks text (gzip, zstd), reads JSONL, finds files below folders, reads them, and turns documents into
// tokens. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "io/store/digest.hpp"

namespace sestina {

// Packed text is unpacked whole, in memory.

// Several members or frames one after the other are one text; Error(bad_data) names `path` when damaged or cut.
std::string unpack_gzip(std::string_view packed, const std::string& path);
std::string unpack_zstd(std::string_view packed, const std::string& path);

// JSONL has one JSON object on each line, of which one member is a document.

// Counts of the lines that were read, and of those that held no text. Lines of JSONL that are invalid are skipped.
struct TextDefects {
  std::uint64_t lines = 0;         // lines of JSONL files, without blank ones
  std::uint64_t invalid_utf8 = 0;  // of these, lines with bytes that are no UTF-8
  std::uint64_t invalid_json = 0;  // lines that are no JSON object
  std::uint64_t without_text = 0;  // lines without a member of that name, or where it is no string
  std::uint64_t skipped() const { return invalid_utf8 + invalid_json + without_text; }
  void add(const TextDefects&);
};

// Returns the documents in order, without empty ones; adds to the counts.
std::vector<std::string> read_json_lines(std::string_view file, const std::string& text_key, int threads, TextDefects&);

// Throws Error(bad_data) when more than `limit` (a share of the lines; ten are allowed anyway, unless it is 0) were
// skipped; Error(input_missing) when most of these are no UTF-8, because then the file is no JSONL.
void require_valid_lines(const TextDefects&, double limit, const std::string& where);

std::string to_text(const TextDefects&);  // "3 of 900 lines skipped (...)", "" when there is none

// Files are found below folders and read (gzip and zstd too), and their documents turned into tokens.
class Tokenizer;

// Returns the files of `inputs`, in order: a file as it is, a folder with all files below it whose name matches one of
// `patterns` (shell globs, of letters of either case; none given: the usual suffixes of text, and of JSONL, with or
// without .gz or .zst, but no .json that holds one JSON value, which a warning names), as list_folder() lists them.
// Error(input_missing) when an input is not there or a folder holds no such file.
std::vector<std::string> list_text_files(const std::vector<std::string>& inputs,
                                         const std::vector<std::string>& patterns);

// Returns "*.txt", "*.txt.gz", "*.txt.zst" for ".txt".
std::vector<std::string> text_patterns(const std::vector<std::string>& suffixes);

// Unpacks contents that begin as gzip or zstd do. Error(bad_data) when they are damaged.
std::string unpack_text(std::string contents, const std::string& path);

enum class TextForm { by_name, text, jsonl };

// The text of one file, unpacked when it begins as gzip or zstd do, without a byte order mark of UTF-8.
class TextFile {
 public:
  // form: jsonl allows lines that are no UTF-8, which are counted later. Error(bad_data) for packed data that are
  // damaged; Error(input_missing) for what is no text (token_file.hpp).
  explicit TextFile(const std::string& path, TextForm form = TextForm::text);
  std::string_view view() const { return std::string_view(contents_).substr(begin_); }
  void drop() { contents_ = {}, begin_ = 0; }

 private:
  std::string contents_;
  std::size_t begin_ = 0;
};

// Cuts a text at lines equal to `separator` (which belong to no document); empty documents are left out.
std::vector<std::string_view> split_documents(std::string_view text, const std::string& separator);

// The rule by which files become documents.
struct DocumentRule {
  TextForm form = TextForm::by_name;
  std::string separator;          // plain text: split_documents
  std::string text_key = "text";  // JSONL: the member that holds the text
  double invalid_limit = 0.01;    // JSONL: share of the lines that may be skipped (require_valid_lines)
  int threads = 0;                // 0 = all cores
  Poll poll = {};                 // called before each file
};

// One file with its documents, which point into it.
class DocumentFile {
 public:
  DocumentFile(const std::string& path, const DocumentRule&);
  DocumentFile(const DocumentFile&) = delete;
  DocumentFile& operator=(const DocumentFile&) = delete;
  const std::vector<std::string_view>& documents() const { return documents_; }
  const TextDefects& counts() const { return counts_; }

 private:
  TextFile file_;
  std::vector<std::string> texts_;
  std::vector<std::string_view> documents_;
  TextDefects counts_;
};

// Reads the files (at least one) in order, in batches of some 64 MB, and shows each batch's documents with the number
// of files read so far. Error(bad_data) at the end when more was invalid than the rule allows.
using DocumentVisitor = std::function<void(const std::vector<std::string_view>&, std::size_t files)>;
TextDefects read_documents(const std::vector<std::string>& files, const DocumentRule&, const DocumentVisitor& visit);

// Gives the sink the tokens of each document (bytes when tokenizer is null), in order, with the id end_of_document
// appended (not to bytes; -1: none). The ids are those of the whole document, however long. poll: called every 16 MB.
void tokenize_documents(const std::vector<std::string_view>& documents, const Tokenizer* tokenizer,
                        std::int64_t end_of_document, int threads,
                        const std::function<void(const std::vector<std::int32_t>&)>& sink, const Poll& poll = {});

}  // namespace sestina
