#include "app/train/run_companions.hpp"

#include <algorithm>
#include <filesystem>

#include "app/start/deck_layers.hpp"
#include "io/hf/hf_model.hpp"
#include "io/store/mapped_file.hpp"

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

}  // namespace sestina
