#include "io/hf/hf_tokenizer.hpp"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/store/mapped_file.hpp"
#include "io/store/output_file.hpp"
#include "io/tokenizer/tokenizer.hpp"

namespace sestina {

namespace fs = std::filesystem;

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

}  // namespace

void write_hf_tokenizer(const std::string& folder, const std::string& path, ModelConfig& config) {
  const Tokenizer tokenizer = Tokenizer::load(path);
  const std::int64_t end = tokenizer.end_of_document(), begin = begin_of_text(tokenizer);
  if (config.eos_token_id < 0 && end < config.vocab_size) config.eos_token_id = end;
  if (config.bos_token_id < 0)
    config.bos_token_id = begin >= 0 && begin < config.vocab_size ? begin : config.eos_token_id;
  write_output_file(fs::path(folder) / "tokenizer.json", MappedFile(path).view());
  const fs::path beside = fs::path(path).parent_path() / "tokenizer_config.json",
                 target = fs::path(folder) / "tokenizer_config.json";
  if (fs::exists(beside)) return write_output_file(target, MappedFile(beside.string()).view());
  const Json json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                  {"bos_token", token_text(tokenizer, config.bos_token_id)},
                  {"eos_token", token_text(tokenizer, config.eos_token_id)},
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
