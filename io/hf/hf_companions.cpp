#include "io/hf/hf_companions.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/store/input_file.hpp"
#include "io/store/output_file.hpp"
#include "io/tokenizer/tokenizer.hpp"

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

// A list of end tokens stays a list.
void copy_token_ids(const std::string& folder, const std::string& config) {
  using Json = nlohmann::ordered_json;
  const Json from = Json::parse(config);  // it was checked when it was first read
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

namespace {

using Json = nlohmann::ordered_json;

std::int64_t begin_of_text(const Tokenizer& tokenizer) {
  for (const char* name : {"<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>"})
    if (const std::int64_t id = tokenizer.id_of(name); id >= 0) return id;
  return -1;
}

Json token_text(const Tokenizer& tokenizer, std::int64_t id) {
  if (id < 0) return nullptr;
  const auto token = static_cast<std::int32_t>(id);
  return tokenizer.decode(&token, 1, false);
}

// The files that transformers keeps next to a tokenizer.json, where they are there.
constexpr const char* with_tokenizer[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                          "chat_template.jinja", "chat_template.json"};

}  // namespace

void copy_tokenizer(const std::string& path, const std::string& folder) {
  write_output_file(fs::path(folder) / "tokenizer.json", MappedFile(path).view());
  std::error_code ignored;
  for (const char* name : with_tokenizer)
    if (const fs::path file = fs::path(path).parent_path() / name; fs::is_regular_file(file, ignored))
      write_output_file(fs::path(folder) / name, MappedFile(file.string()).view());
}

void name_special_tokens(const TokenSources& sources, ModelConfig& config) {
  const SpecialTokens tokens = find_special_tokens(sources);
  const auto name = [&](std::int64_t& id, std::int64_t found, bool on_purpose) {
    if ((id < 0 || on_purpose) && found >= 0 && found < config.vocab_size) id = found;
  };
  name(config.eos_token_id, tokens.end, !sources.end_token.empty());
  name(config.bos_token_id, tokens.begin, !sources.begin_token.empty());
  name(config.bos_token_id, begin_of_text(*sources.tokenizer), false);
  name(config.bos_token_id, config.eos_token_id, false);
  name(config.pad_token_id, tokens.pad, false);
}

void write_hf_tokenizer(const std::string& folder, const std::string& path, ModelConfig& config) {
  const Tokenizer tokenizer = Tokenizer::load(path);
  name_special_tokens({.tokenizer = &tokenizer, .tokenizer_path = path, .model = &config}, config);
  copy_tokenizer(path, folder);
  const fs::path target = fs::path(folder) / "tokenizer_config.json";
  if (fs::exists(target)) return;
  const Json json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                  {"bos_token", token_text(tokenizer, config.bos_token_id)},
                  {"eos_token", token_text(tokenizer, config.eos_token_id)},
                  {"pad_token", token_text(tokenizer, config.pad_token_id)},
                  {"model_max_length", config.max_position_embeddings},
                  {"clean_up_tokenization_spaces", false}};
  write_output_file(target, json.dump(2) + "\n");
}

std::string generation_json(const ModelConfig& config) {
  Json json{{"_from_model_config", true}};
  if (config.bos_token_id >= 0) json["bos_token_id"] = config.bos_token_id;
  if (config.eos_token_id >= 0) json["eos_token_id"] = config.eos_token_id;
  if (config.pad_token_id >= 0) json["pad_token_id"] = config.pad_token_id;
  return json.dump(2) + "\n";
}

}  // namespace sestina
