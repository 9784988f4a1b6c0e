#include "io/hf/hf_companions.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/store/mapped_file.hpp"
#include "io/store/output_file.hpp"

namespace sestina {
namespace {

namespace fs = std::filesystem;

// The first two are the model's, the others the tokenizer's: in one file, or in those of older tokenizers.
constexpr std::string_view model_files[] = {"config.json", "generation_config.json"};
constexpr std::string_view tokenizer_files[] = {"tokenizer.json",
                                                "tokenizer_config.json",
                                                "special_tokens_map.json",
                                                "added_tokens.json",
                                                "chat_template.jinja",
                                                "chat_template.json",
                                                "vocab.json",
                                                "vocab.txt",
                                                "merges.txt",
                                                "tokenizer.model"};

// A list of ends stays one.
void copy_token_ids(const std::string& folder, const std::string& config) {
  using Json = nlohmann::ordered_json;
  const Json from = Json::parse(config);  // it was read when it came in
  for (const std::string_view name : model_files) {
    const std::string path = (fs::path(folder) / name).string();
    Json to = Json::parse(MappedFile(path).view());
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      if (from.contains(key)) to[key] = from[key];
    write_output_file(path, to.dump(2) + "\n");
  }
}

}  // namespace

std::string hf_companion_folder(const std::string& checkpoint, const std::string& hf) {
  std::error_code ignored;
  const fs::path carried = fs::path(checkpoint) / kCompanionFolder;
  return !checkpoint.empty() && fs::is_directory(carried, ignored) ? carried.string() : hf;
}

std::vector<CompanionFile> read_hf_companions(const std::string& folder) {
  std::vector<CompanionFile> files;
  const auto read = [&](std::string_view name) {
    const fs::path path = fs::path(folder) / name;
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored))
      files.push_back({std::string(name), std::string(MappedFile(path.string()).view())});
  };
  for (const std::string_view name : model_files) read(name);
  for (const std::string_view name : tokenizer_files) read(name);
  return files;
}

void write_hf_companions(const std::string& folder, const std::vector<CompanionFile>& files) {
  for (const CompanionFile& file : files)
    if (file.name == "config.json") copy_token_ids(folder, file.bytes);
  for (const CompanionFile& file : files)
    if (file.name != "config.json") write_output_file((fs::path(folder) / file.name).string(), file.bytes);
}

bool is_tokenizer_file(const std::string& name) {
  return std::find(std::begin(tokenizer_files), std::end(tokenizer_files), name) != std::end(tokenizer_files);
}

}  // namespace sestina
