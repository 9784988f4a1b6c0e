#include "io/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/store/input_file.hpp"

namespace sestina {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct NamedIds {
  std::vector<std::int64_t> ids;
  std::string source;
};

// Reads one of the files, or gives an empty object.
struct TokenFile {
  std::string path;
  json object = json::object();
};

TokenFile read_token_file(const std::string& folder, const char* name) {
  TokenFile file{(fs::path(folder) / name).string()};
  std::error_code ignored;
  if (folder.empty() || !fs::is_regular_file(file.path, ignored)) return file;
  file.object = json::parse(MappedFile(file.path).view(), nullptr, false);
  if (!file.object.is_object()) fail(ExitCode::bad_data, "{}: not a JSON object", file.path);
  return file;
}

std::string folder_of(const std::string& path) {
  if (path.empty()) return "";
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

// Looks into the places in turn; tokens that it has found stay.
class TokenFinder {
 public:
  explicit TokenFinder(const TokenSources& sources)
      : sources_(sources),
        model_folder_(sources.folder.empty() ? folder_of(sources.tokenizer_path) : sources.folder),
        config_(read_token_file(model_folder_, "config.json")),
        generation_(read_token_file(model_folder_, "generation_config.json")),
        tokenizer_config_(read_token_file(folder_of(sources.tokenizer_path), "tokenizer_config.json")),
        map_(read_token_file(folder_of(sources.tokenizer_path), "special_tokens_map.json")) {}

  SpecialTokens find() const {
    SpecialTokens found;
    const NamedIds deck_end = of_deck("data.end_token", sources_.end_token),
                   deck_begin = of_deck("data.begin_token", sources_.begin_token);
    const NamedIds end =
        first({deck_end, of_tokenizer("eos_token"), of_config(config_, "eos_token_id"),
               of_config(generation_, "eos_token_id"), by_name(), of_model(&ModelConfig::eos_token_id)});
    const NamedIds begin = first({deck_begin, of_tokenizer("bos_token"), of_config(config_, "bos_token_id"),
                                  of_config(generation_, "bos_token_id"), of_model(&ModelConfig::bos_token_id)});
    const NamedIds pad = first({of_tokenizer("pad_token"), of_config(config_, "pad_token_id"),
                                of_config(generation_, "pad_token_id"), of_model(&ModelConfig::pad_token_id)});
    NamedIds ends = first({of_config(generation_, "eos_token_id"), of_config(config_, "eos_token_id"), end,
                           of_class(&ModelConfig::eos_token_id)});
    for (const std::int64_t id : deck_end.ids)
      if (std::find(ends.ids.begin(), ends.ids.end(), id) == ends.ids.end()) ends.ids.insert(ends.ids.begin(), id);
    take(end, found.end, found.end_source);
    take(begin, found.begin, found.begin_source);
    take(pad, found.pad, found.pad_source);
    found.ends = ends.ids;
    found.ends_source = ends.source;
    if (sources_.tokenizer != nullptr) found.prefix = sources_.tokenizer->prefix();
    return found;
  }

 private:
  static NamedIds first(const std::vector<NamedIds>& places) {
    for (const NamedIds& place : places)
      if (!place.ids.empty()) return place;
    return {};
  }
  static void take(const NamedIds& from, std::int64_t& id, std::string& source) {
    if (from.ids.empty()) return;
    id = from.ids.front();
    source = from.source;
  }

  bool exists(std::int64_t id) const {
    if (sources_.model != nullptr) return id >= 0 && id < sources_.model->vocab_size;
    return sources_.tokenizer != nullptr ? sources_.tokenizer->has(id) : id >= 0;
  }

  // The deck's word is the token's text, or its id where no tokenizer knows such a text.
  NamedIds of_deck(const char* key, const std::string& token) const {
    if (token.empty()) return {};
    if (sources_.tokenizer != nullptr)
      if (const std::int64_t id = sources_.tokenizer->id_of(token); id >= 0) return {{id}, key};
    constexpr std::size_t longest = 9;  // digits
    if (token.size() <= longest && token.find_first_not_of("0123456789") == token.npos && exists(std::stoll(token)))
      return {{std::stoll(token)}, key};
    fail(ExitCode::bad_deck, "{}: \"{}\" is not a token of {}; allowed: the text of one of its tokens, or an id", key,
         token, sources_.tokenizer_path.empty() ? "a tokenizer (data.tokenizer names none)" : sources_.tokenizer_path);
  }

  // "eos_token": "</s>" or {"content": "</s>", ...}
  NamedIds of_words(const TokenFile& file, const char* key) const {
    const auto found = file.object.find(key);
    if (sources_.tokenizer == nullptr || found == file.object.end()) return {};
    const json& word = found->is_object() ? found->value("content", json()) : *found;
    if (!word.is_string()) return {};
    const std::int64_t id = sources_.tokenizer->id_of(word.get_ref<const std::string&>());
    return id >= 0 ? NamedIds{{id}, fmt::format("{}: {}", file.path, key)} : NamedIds{};
  }
  NamedIds of_tokenizer(const char* key) const {
    const NamedIds config = of_words(tokenizer_config_, key), map = of_words(map_, key);
    return tokenizer_config_.object.contains("added_tokens_decoder") ? first({config, map}) : first({map, config});
  }

  // "eos_token_id": an id or a list of them; null and -1 are none.
  NamedIds of_config(const TokenFile& file, const char* key) const {
    NamedIds named{{}, fmt::format("{}: {}", file.path, key)};
    const auto found = file.object.find(key);
    if (found == file.object.end()) return {};
    for (const json& id : found->is_array() ? *found : json::array({*found}))
      if (id.is_number_integer() && exists(id.get<std::int64_t>())) named.ids.push_back(id.get<std::int64_t>());
    return named;
  }
  // An id that config.json does not say is its class's, a number that may be any token of this tokenizer.
  NamedIds of_model(std::int64_t ModelConfig::*id) const { return config_.object.empty() ? of_class(id) : NamedIds{}; }
  NamedIds of_class(std::int64_t ModelConfig::*id) const {
    if (sources_.model == nullptr || !exists(sources_.model->*id)) return {};
    return {{sources_.model->*id}, "the model"};
  }
  NamedIds by_name() const {
    const std::int64_t id = sources_.tokenizer != nullptr ? sources_.tokenizer->end_of_document() : -1;
    return id >= 0 ? NamedIds{{id}, "its name in " + sources_.tokenizer_path} : NamedIds{};
  }

  const TokenSources& sources_;
  std::string model_folder_;
  TokenFile config_, generation_, tokenizer_config_, map_;
};

}  // namespace

bool SpecialTokens::stops_at(std::int64_t id) const { return std::find(ends.begin(), ends.end(), id) != ends.end(); }

std::vector<std::int32_t> SpecialTokens::start() const {
  if (!prefix.empty()) return prefix;
  const std::int64_t id = begin >= 0 ? begin : end;
  return id >= 0 ? std::vector<std::int32_t>{static_cast<std::int32_t>(id)} : std::vector<std::int32_t>{};
}

SpecialTokens find_special_tokens(const TokenSources& sources) { return TokenFinder(sources).find(); }

std::string missing_end(const SpecialTokens& tokens, const TokenSources& sources) {
  if (tokens.end >= 0 || sources.tokenizer == nullptr) return "";
  return fmt::format(
      "{}: no end token is known, so documents follow each other without one: name it as eos_token in the "
      "tokenizer_config.json next to it, or with data.end_token",
      sources.tokenizer_path);
}

}  // namespace sestina
