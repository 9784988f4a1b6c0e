#include "app/train/run_data.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "app/start/run_deck.hpp"
#include "io/hf/hf_model.hpp"
#include "io/store/input_file.hpp"

namespace fs = std::filesystem;

namespace sestina {

bool holds_hf_model(const std::string& checkpoint) {
  const std::string folder = hf_companion_folder(checkpoint, "");
  std::error_code ignored;
  return !folder.empty() && fs::is_regular_file(fs::path(folder) / "config.json", ignored);
}

void take_companions(Options& options, const DeckArguments& arguments, const std::string& checkpoint) {
  if (!holds_hf_model(checkpoint)) return;
  const std::string folder = hf_companion_folder(checkpoint, "");
  options.data.model_folder = folder;
  const ModelConfig config = read_hf_config(folder);
  options.model.bos_token_id = config.bos_token_id;
  options.model.eos_token_id = config.eos_token_id;
  options.model.pad_token_id = config.pad_token_id;
  const bool named =
      given_deck({.files = {}, .overrides = arguments.overrides}).has("data.tokenizer") || options.data.bytes_chosen;
  const std::string tokenizer = (fs::path(folder) / "tokenizer.json").string();
  std::error_code ignored;
  if (named || !fs::is_regular_file(tokenizer, ignored)) return;
  options.data.tokenizer = tokenizer;
  options.data.tokenizer_of_model = true;
}

std::vector<CompanionFile> companions_of(const Options& options, const std::string& checkpoint) {
  const std::string folder = hf_companion_folder(checkpoint, options.model.from_hf);
  if (folder.empty()) return {};
  std::vector<CompanionFile> files = read_hf_companions(folder);
  const fs::path tokenizer = options.data.tokenizer;
  std::error_code ignored;
  if (tokenizer.empty() || fs::equivalent(tokenizer, fs::path(folder) / "tokenizer.json", ignored)) return files;
  std::erase_if(files, [](const CompanionFile& file) { return is_tokenizer_file(file.name); });
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    const fs::path path = name == std::string("tokenizer.json") ? tokenizer : tokenizer.parent_path() / name;
    if (fs::is_regular_file(path, ignored)) files.push_back({name, std::string(MappedFile(path.string()).view())});
  }
  return files;
}

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
