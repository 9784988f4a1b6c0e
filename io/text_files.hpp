// Text on disk: finding files below folders, reading them (gzip too), and turning documents into tokens. No Kokkos.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "io/mapped_file.hpp"

namespace sestina {

class Tokenizer;

// Files of `inputs`, in order: a file as it is, a folder with all files below it whose name matches one of `patterns`
// (shell globs; none given: the usual suffixes of text, with or without .gz), sorted by path.
// Error(input_missing) when an input is not there or a folder holds no such file.
std::vector<std::string> list_text_files(const std::vector<std::string>& inputs,
                                         const std::vector<std::string>& patterns);

// The text of one file: mapped, or unpacked when it begins as gzip does.
class TextFile {
 public:
  explicit TextFile(const std::string& path);  // Error(input_missing, bad_data)
  std::string_view view() const;

 private:
  std::variant<MappedFile, std::string> contents_;
};

// Cuts a text at lines equal to `separator` (which belong to no document); empty documents are left out.
std::vector<std::string_view> split_documents(std::string_view text, const std::string& separator);

// Reads the files in order, in batches of some 64 MB, and shows each batch's documents with the bytes and files read so
// far.
using DocumentVisitor =
    std::function<void(const std::vector<std::string_view>&, std::uint64_t bytes, std::size_t files)>;
void read_documents(const std::vector<std::string>& files, const std::string& separator, const DocumentVisitor& visit);

// Tokens of each document (bytes when tokenizer is null), in order, with the tokenizer's end-of-document id appended
// when wanted and there is one. Long documents are cut where every supported pattern cuts too, so that all threads
// have work; the ids are those of the whole document.
void tokenize_documents(const std::vector<std::string_view>& documents, const Tokenizer* tokenizer,
                        bool end_of_document, int threads,
                        const std::function<void(const std::vector<std::int32_t>&)>& sink);

}  // namespace sestina
