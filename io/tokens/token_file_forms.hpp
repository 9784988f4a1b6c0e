// One function per format behind open_source(). No Kokkos.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/tokens/text_files.hpp"
#include "io/tokens/token_file.hpp"

namespace sestina {

// A file, all files with this suffix in a folder, or those that a shell pattern names; sorted. Error(input_missing).
std::vector<std::string> list_token_files(const std::string& path, const std::string& suffix);

// A text (or JSONL) file, or those of that form below a folder. Error(input_missing).
std::vector<std::string> list_text_source(const std::string& path, TextForm form);

std::unique_ptr<TokenSource> open_megatron(const std::string& prefix, std::int64_t vocab_size);
std::unique_ptr<TokenSource> open_llmc(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document);
std::unique_ptr<TokenSource> open_npy(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document);
std::unique_ptr<TokenSource> open_text(const std::string& path, std::int64_t vocab_size, const Tokenizer*,
                                       const DocumentMarks&, const Poll&);
std::unique_ptr<TokenSource> open_jsonl(const DataSource&, std::int64_t vocab_size, const Tokenizer*,
                                        const DocumentMarks&, const Poll&);

// "tokens" and "bytes" of the text that a Megatron pair was made of, in <prefix>.json. Zeros when the file is not
// there.
struct TextCounts {
  std::uint64_t tokens = 0, bytes = 0;
};
TextCounts read_text_counts(const std::string& prefix);
void write_text_counts(const std::string& prefix, const TextCounts&, const std::string& tokenizer);

}  // namespace sestina
