#include "app/train/run_data.hpp"

#include <spdlog/spdlog.h>

namespace sestina {

std::unique_ptr<Tokenizer> open_tokenizer(const DataOptions& data) {
  if (data.tokenizer.empty()) return nullptr;
  try {
    return std::make_unique<Tokenizer>(Tokenizer::load(data.tokenizer));
  } catch (const Error& error) {
    if (data.reads_text() || !data.tokenizer_of_model) throw;
    spdlog::warn("{}; no data source is text: continuing without a tokenizer", error.what());
    return nullptr;
  }
}

std::string byte_text_defect(const Options& options, bool needed) {
  constexpr std::int64_t byte_vocabulary = 256;
  const DataOptions& data = options.data;
  const bool reads_bytes = data.tokenizer.empty() && (needed || data.reads_bytes());
  if (!reads_bytes || data.bytes_chosen || options.model.vocab_size == byte_vocabulary) return "";
  const std::string where =
      options.model.from_hf.empty() ? "" : fmt::format("; {} holds no tokenizer.json", options.model.from_hf);
  return fmt::format(
      "text would be read as bytes (no data.tokenizer), but model.vocab_size is {}, not 256{}: give "
      "data.tokenizer=FILE, or data.tokenizer=bytes to read it as bytes",
      options.model.vocab_size, where);
}

void require_byte_vocabulary(const Options& options, bool needed) {
  if (const std::string defect = byte_text_defect(options, needed); !defect.empty())
    fail(ExitCode::bad_data, "{}", defect);
}

namespace {

TokenSources token_sources(const Options& options, const Tokenizer* tokenizer, const std::string& tokenizer_path,
                           const std::string& folder) {
  return {tokenizer,
          tokenizer == nullptr ? "" : tokenizer_path,
          folder,
          &options.model,
          options.data.begin_token,
          options.data.end_token};
}

}  // namespace

SpecialTokens special_tokens(const Options& options, const Tokenizer* tokenizer, const std::string& tokenizer_path,
                             const std::string& folder) {
  return find_special_tokens(token_sources(options, tokenizer, tokenizer_path, folder));
}

SampleSet open_samples(const Options& options, Split split, const Tokenizer* tokenizer, const Poll& poll, TextUse use) {
  const DataOptions& data = options.data;
  const TokenSources sources = token_sources(options, tokenizer, data.tokenizer, data.model_folder);
  const SpecialTokens tokens = find_special_tokens(sources);
  DocumentMarks marks(tokens.end, use == TextUse::ask ? tokens.prefix : std::vector<std::int32_t>{});
  marks.begin = tokens.begin;
  const std::string defect = missing_end(tokens, sources);
  if (!defect.empty() && data.reads_text()) spdlog::warn("{}", defect);
  return SampleSet(data, split, options.model.vocab_size, options.run.seed, tokenizer, marks, poll);
}

bool has_validation(const DataOptions& data) { return !data.validation.empty() || data.validation_fraction > 0; }

}  // namespace sestina
