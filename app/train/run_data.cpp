#include "app/train/run_data.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace sestina {

std::unique_ptr<Tokenizer> open_tokenizer(const DataOptions& data) {
  if (data.tokenizer.empty()) return nullptr;
  try {
    return std::make_unique<Tokenizer>(Tokenizer::load(data.tokenizer));
  } catch (const Error& error) {
    const auto reads_text = [](const DataSource& s) { return is_text(s.format); };
    const bool needed = std::any_of(data.source.begin(), data.source.end(), reads_text) ||
                        std::any_of(data.validation.begin(), data.validation.end(), reads_text);
    if (needed || !data.tokenizer_of_model) throw;
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

SampleSet open_samples(const Options& options, Split split, const Tokenizer* tokenizer, const Poll& poll) {
  return SampleSet(options.data, split, options.model.vocab_size, options.run.seed, tokenizer,
                   options.model.eos_token_id, poll);
}

bool has_validation(const DataOptions& data) { return !data.validation.empty() || data.validation_fraction > 0; }

}  // namespace sestina
