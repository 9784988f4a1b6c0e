#include "io/tokens/token_file.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/store/folder_list.hpp"
#include "io/store/output_file.hpp"
#include "io/store/stored_bytes.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/file_kind.hpp"
#include "io/tokens/token_file_flat.hpp"
#include "io/tokens/token_file_forms.hpp"
#include "io/tokens/token_file_index.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

namespace {

// The stream of a .bin with the documents of its .idx.
class MegatronTokens : public TokenSource {
 public:
  MegatronTokens(TokenPart part, MegatronIndex index, std::string prefix, TextCounts counts)
      : part_(std::move(part)), index_(std::move(index)), prefix_(std::move(prefix)), counts_(counts) {}
  std::uint64_t size() const override { return part_.count; }
  void read(std::uint64_t begin, std::size_t count, std::int32_t* out) const override {
    SESTINA_REQUIRE(begin + count <= part_.count, "tokens {} to {} of {}", begin, begin + count, part_.count);
    widen(part_, begin, count, out);
  }
  void document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const override {
    index_.document_starts(begin, end, out);
  }
  std::string description() const override {
    return fmt::format("Megatron {}: {} tokens ({}) in {} documents", prefix_, part_.count, name(part_.type),
                       index_.documents);
  }
  const char* token_type() const override { return name(part_.type); }
  double bytes_per_token() const override {
    return counts_.tokens == part_.count ? static_cast<double>(counts_.bytes) / static_cast<double>(counts_.tokens) : 0;
  }

 private:
  TokenPart part_;
  MegatronIndex index_;
  std::string prefix_;
  TextCounts counts_;
};

std::string counts_path(const std::string& prefix) { return prefix + ".json"; }

std::vector<std::string> expand_pattern(const std::string& pattern) {
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::string> files;
  for (std::size_t i = 0; status == 0 && i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  return files;
}

}  // namespace

std::vector<std::string> list_token_files(const std::string& path, const std::string& suffix) {
  std::vector<std::string> files;
  std::error_code ignored;  // a name that is too long is that of no file
  if (fs::is_directory(path, ignored))
    files = list_folder(path, Depth::this_folder, [&](const std::string& name) { return name.ends_with(suffix); });
  else
    files = fs::exists(path, ignored) ? std::vector{path} : each_once(expand_pattern(path));
  if (files.empty())
    fail(ExitCode::input_missing, "{}: no such file, and no folder or pattern with {} files", path, suffix);
  std::sort(files.begin(), files.end());
  return files;
}

std::unique_ptr<TokenSource> open_megatron(const std::string& prefix, std::int64_t vocab_size) {
  const std::string bin = prefix + ".bin", idx = prefix + ".idx";
  const auto index_file = std::make_shared<FileBytes>(idx), tokens = std::make_shared<FileBytes>(bin);
  refuse_foreign(*index_file, idx);
  refuse_foreign(*tokens, bin);
  MegatronIndex index = parse_megatron_index(index_file, tokens->size(), idx);
  TokenPart part{bin, tokens, 0, index.tokens, index.type};
  check_tokens(part, vocab_size);
  return std::make_unique<MegatronTokens>(part, std::move(index), prefix, read_text_counts(prefix));
}

TextCounts read_text_counts(const std::string& prefix) {
  const std::string path = counts_path(prefix);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  const auto json = nlohmann::json::parse(read_whole_file(path), nullptr, false);
  const auto number = [&](const char* key) -> std::uint64_t {
    return json.is_object() && json.contains(key) && json[key].is_number_unsigned() ? json[key].get<std::uint64_t>()
                                                                                    : 0;
  };
  return {number("tokens"), number("bytes")};
}

void write_text_counts(const std::string& prefix, const TextCounts& counts, const std::string& tokenizer) {
  const nlohmann::ordered_json json = {{"tokens", counts.tokens}, {"bytes", counts.bytes}, {"tokenizer", tokenizer}};
  write_output_file(counts_path(prefix), json.dump(2) + "\n");
}

std::unique_ptr<TokenSource> open_source(const DataSource& source, const Tokenizer* tokenizer, std::int64_t vocab_size,
                                         DocumentMarks marks, const Poll& poll) {
  if (marks.end < 0 && tokenizer != nullptr) marks.end = tokenizer->end_of_document();
  switch (source.format) {
    case DataSource::Format::megatron:
      return open_megatron(source.path, vocab_size);
    case DataSource::Format::llmc:
      return open_llmc(source.path, vocab_size, marks.end);
    case DataSource::Format::npy:
      return open_npy(source.path, vocab_size, marks.end);
    case DataSource::Format::text:
      return open_text(source.path, vocab_size, tokenizer, marks, poll);
    case DataSource::Format::jsonl:
      return open_jsonl(source, vocab_size, tokenizer, marks, poll);
  }
  fail(ExitCode::internal, "unknown format of {}", source.path);
}

}  // namespace sestina
