// A source of plain text: it is tokenised once when opened, or its bytes are read as they lie in the file.
#include <algorithm>

#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/text_files.hpp"
#include "io/tokens/token_file.hpp"
#include "io/tokens/token_file_forms.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

class TextTokens : public TokenSource {
 public:
  // tokenizer: null reads bytes
  TextTokens(const std::vector<std::string>& paths, const DocumentRule& rule, const Tokenizer* tokenizer,
             const DocumentMarks& marks)
      : path_(paths.front()), files_(paths.size()) {
    const auto append = [&](const std::vector<std::int32_t>& document) {
      if (!document.empty()) starts_.push_back(tokens_.size());
      if (tokenizer != nullptr) tokens_.insert(tokens_.end(), marks.prefix.begin(), marks.prefix.end());
      tokens_.insert(tokens_.end(), document.begin(), document.end());
    };
    defects_ = to_text(read_documents(paths, rule, [&](const auto& documents, std::size_t) {
      tokenize_documents(documents, tokenizer, marks.end, 0, append, rule.poll);
      for (const std::string_view document : documents) bytes_ += document.size();
    }));
  }
  std::uint64_t size() const override { return tokens_.size(); }
  void read(std::uint64_t begin, std::size_t count, std::int32_t* out) const override {
    SESTINA_REQUIRE(begin + count <= tokens_.size(), "tokens {} to {} of {}", begin, begin + count, tokens_.size());
    std::copy_n(tokens_.begin() + static_cast<std::ptrdiff_t>(begin), count, out);
  }
  void document_starts(std::uint64_t begin, std::uint64_t end, std::vector<std::uint64_t>& out) const override {
    const auto first = std::lower_bound(starts_.begin(), starts_.end(), begin);
    out.assign(first, std::lower_bound(first, starts_.end(), end));
  }
  std::string description() const override {
    return fmt::format("text {}: {} tokens of {} bytes in {} documents of {} files{}{}", path_, tokens_.size(), bytes_,
                       starts_.size(), files_, defects_.empty() ? "" : "; ", defects_);
  }
  double bytes_per_token() const override { return static_cast<double>(bytes_) / static_cast<double>(tokens_.size()); }
  void check(std::int64_t vocab_size) const {
    if (tokens_.empty()) fail(ExitCode::bad_data, "{}: holds no tokens", path_);
    const auto largest = std::max_element(tokens_.begin(), tokens_.end());
    if (vocab_size > 0 && *largest >= vocab_size)
      fail(ExitCode::bad_data,
           "{}: token {} has id {}, allowed are 0 to {}: the tokenizer is larger than the model's vocabulary", path_,
           largest - tokens_.begin(), *largest, vocab_size - 1);
  }

 private:
  std::string path_, defects_;
  std::size_t files_;
  std::uint64_t bytes_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint64_t> starts_;
};

std::unique_ptr<TokenSource> open_bytes(const std::vector<std::string>& paths, std::int64_t vocab_size,
                                        const Poll& poll) {
  constexpr std::uint64_t head_bytes = 64;
  std::vector<TokenPart> parts;
  const auto open = std::make_shared<OpenFiles>();
  for (const auto& path : paths) {
    std::shared_ptr<const StoredBytes> bytes = std::make_shared<FileBytes>(path, open);
    const std::string head = bytes->text(0, static_cast<std::size_t>(std::min(head_bytes, bytes->size())));
    if (is_gzip(head) || is_zstd(head)) bytes = std::make_shared<OwnedBytes>(unpack_text(read_whole_file(path), path));
    require_utf8(*bytes, path, poll);
    const bool marked = bytes->size() >= utf8_mark.size() && bytes->text(0, utf8_mark.size()) == utf8_mark;
    const std::uint64_t begin = marked ? utf8_mark.size() : 0;
    if (bytes->size() == begin) continue;
    parts.push_back({path, bytes, begin, bytes->size() - begin, TokenType::u8});
    check_tokens(parts.back(), vocab_size);
  }
  if (parts.empty()) fail(ExitCode::bad_data, "{}: holds no text", paths.front());
  return std::make_unique<FlatTokens>(std::move(parts), -1, "bytes of");
}

}  // namespace

std::vector<std::string> list_text_source(const std::string& path, TextForm form) {
  if (form == TextForm::jsonl) return list_text_files({path}, text_patterns({".jsonl", ".ndjson", ".json"}));
  return list_text_files({path}, text_patterns({".txt"}));
}

std::unique_ptr<TokenSource> open_text(const std::string& path, std::int64_t vocab_size, const Tokenizer* tokenizer,
                                       const DocumentMarks& marks, const Poll& poll) {
  const auto paths = list_text_source(path, TextForm::text);
  if (tokenizer == nullptr) return open_bytes(paths, vocab_size, poll);
  DocumentRule rule;
  rule.form = TextForm::text;
  rule.poll = poll;
  auto tokens = std::make_unique<TextTokens>(paths, rule, tokenizer, marks);
  tokens->check(vocab_size);
  return tokens;
}

std::unique_ptr<TokenSource> open_jsonl(const DataSource& source, std::int64_t vocab_size, const Tokenizer* tokenizer,
                                        const DocumentMarks& marks, const Poll& poll) {
  const DocumentRule rule{TextForm::jsonl, "", source.text_key, source.invalid_limit, 0, poll};
  auto tokens = std::make_unique<TextTokens>(list_text_source(source.path, TextForm::jsonl), rule, tokenizer, marks);
  tokens->check(vocab_size);
  return tokens;
}

}  // namespace sestina
