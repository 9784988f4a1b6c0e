#include "io/tokens/token_file.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/store/input_file.hpp"
#include "io/store/output_file.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/token_file_forms.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

namespace fs = std::filesystem;

namespace {

// A stream of the tokens of a .bin with the documents of its .idx.
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

struct MegatronWriter::State {
  std::string prefix;
  std::int64_t vocab_size;
  bool narrow;  // u16, else i32
  OutputFile bin;
  std::vector<std::int32_t> lengths;
  std::vector<std::uint16_t> narrowed;
  State(const std::string& prefix_, std::int64_t vocab_size_)
      : prefix(prefix_), vocab_size(vocab_size_), narrow(vocab_size_ < 65500), bin(prefix_ + ".bin") {}
};

MegatronWriter::MegatronWriter(const std::string& prefix, std::int64_t vocab_size)
    : state_(std::make_unique<State>(prefix, vocab_size)) {}
MegatronWriter::~MegatronWriter() = default;

void MegatronWriter::add_document(const std::int32_t* tokens, std::size_t count) {
  if (count == 0) return;
  State& state = *state_;
  if (count > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    fail(ExitCode::bad_data, "{}: document {} has {} tokens, the format allows {}", state.prefix, state.lengths.size(),
         count, std::numeric_limits<std::int32_t>::max());
  for (std::size_t i = 0; i < count; ++i)
    SESTINA_REQUIRE(tokens[i] >= 0 && tokens[i] < state.vocab_size, "token {} of {}", tokens[i], state.vocab_size);
  if (state.narrow) {
    state.narrowed.assign(tokens, tokens + count);
    state.bin.write(state.narrowed.data(), count * sizeof(std::uint16_t));
  } else {
    state.bin.write(tokens, count * sizeof(std::int32_t));
  }
  state.lengths.push_back(static_cast<std::int32_t>(count));
}

// Every document is one sequence. The .idx is renamed last: without it there is no pair.
void MegatronWriter::finish() {
  State& state = *state_;
  const auto documents = static_cast<std::uint64_t>(state.lengths.size());
  OutputFile idx(state.prefix + ".idx");
  const auto put = [&](auto value) { idx.write(&value, sizeof value); };
  idx.write(std::string_view("MMIDIDX\0\0", 9));
  put(std::uint64_t{1});
  put(static_cast<std::uint8_t>(state.narrow ? 8 : 4));
  put(documents);
  put(documents + 1);
  idx.write(state.lengths.data(), documents * sizeof(std::int32_t));
  std::int64_t pointer = 0;
  for (const std::int32_t length : state.lengths) {
    put(pointer);
    pointer += std::int64_t{length} * (state.narrow ? 2 : 4);
  }
  for (std::uint64_t d = 0; d <= documents; ++d) put(static_cast<std::int64_t>(d));
  state.bin.commit();
  idx.commit();
}

FileDigest digest_source(const DataSource& source, const Poll& poll) {
  switch (source.format) {
    case DataSource::Format::megatron: {
      const FileDigest index = digest_files({source.path + ".idx"}, poll, true);
      FileDigest all = digest_files({source.path + ".bin"}, poll);
      all.size += index.size;
      const std::string both = index.xxh3_128 + all.xxh3_128;
      all.xxh3_128 = digest128(both.data(), both.size());
      return all;
    }
    case DataSource::Format::llmc:
      return digest_files(list_token_files(source.path, ".bin"), poll);
    case DataSource::Format::npy:
      return digest_files(list_token_files(source.path, ".npy"), poll);
    case DataSource::Format::jsonl:
      return digest_files(list_text_source(source.path, TextForm::jsonl), poll);
    case DataSource::Format::text:
      break;
  }
  return digest_files(list_text_source(source.path, TextForm::text), poll);
}

FileDigest digest_hf_folder(const std::string& folder, const Poll& poll) {
  std::vector<std::string> files = list_token_files(folder, ".safetensors");
  files.push_back(folder + "/config.json");
  return digest_files(files, poll);
}

}  // namespace sestina
