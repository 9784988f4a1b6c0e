// Access to the keys of a config.json. No Kokkos.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/deck/model_config.hpp"

namespace sestina {

inline constexpr std::int64_t largest_size = 1 << 24;  // limit of a deck, which is to hold the sizes
inline constexpr double least_eps = 1e-300;            // limit of a deck too: above 0

// Typed access to one object, with the file and key in every message. A key that is null is absent.
class HfReader {
 public:
  HfReader(const nlohmann::ordered_json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const nlohmann::ordered_json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::int64_t integer(const char* key, std::int64_t fallback, std::int64_t least = 1) const {
    const nlohmann::ordered_json* value = find(key);
    return value ? whole(key, *value, least) : fallback;
  }
  // Returns a size; with a fallback of 0 the key is required.
  std::int64_t size(const char* key, std::int64_t fallback) const {
    if (fallback == 0 && !find(key)) fail(ExitCode::bad_data, "{}: {}: missing", where_, key);
    const std::int64_t value = integer(key, fallback);
    if (value > largest_size) reject(key, value, fmt::format("an integer in [1, {}]", largest_size));
    return value;
  }
  double number(const char* key, double fallback, double least = 0) const {
    const nlohmann::ordered_json* value = find(key);
    if (!value) return fallback;
    if (!value->is_number() || value->get<double>() < least || !(value->get<double>() < 1e30))
      reject(key, *value, fmt::format("a number of at least {}", least));
    return value->get<double>();
  }
  bool boolean(const char* key, bool fallback) const {
    const nlohmann::ordered_json* value = find(key);
    if (value && !value->is_boolean()) reject(key, *value, "true or false");
    return value ? value->get<bool>() : fallback;
  }
  std::string text(const char* key, const std::string& fallback) const {
    const nlohmann::ordered_json* value = find(key);
    if (value && !value->is_string()) reject(key, *value, "a string");
    return value ? value->get<std::string>() : fallback;
  }
  // Returns a token id or the first of a list of them, or -1 for none (some files write it so; null is none, too). For
  // an absent key it is the class's own, if the vocabulary has it.
  std::int64_t token(const char* key, std::int64_t of_class, std::int64_t vocabulary) const {
    if (!object_.contains(key)) return of_class < vocabulary ? of_class : -1;
    const nlohmann::ordered_json* value = find(key);
    if (value && value->is_array()) value = value->empty() ? nullptr : &value->front();
    return value ? whole(key, *value, -1) : -1;
  }
  HfReader child(const char* key, const nlohmann::ordered_json& object) const {
    if (!object.is_object()) reject(key, object, "an object");
    return HfReader(object, where_ + ": " + key);
  }
  [[noreturn]] void reject(const char* key, const nlohmann::ordered_json& got, const std::string& allowed) const {
    fail(ExitCode::bad_data, "{}: {}: got {}, allowed {}", where_, key,
         got.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace).substr(0, 80), allowed);
  }
  const nlohmann::ordered_json& object() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  std::int64_t whole(const char* key, const nlohmann::ordered_json& value, std::int64_t least) const {
    constexpr std::int64_t most = std::int64_t{1} << 31;
    const bool fits =
        value.is_number_integer() && value.get<double>() >= static_cast<double>(least) && value.get<double>() < most;
    if (!fits) reject(key, value, fmt::format("an integer in [{}, 2^31)", least));
    return value.get<std::int64_t>();
  }

  const nlohmann::ordered_json& object_;
  std::string where_;
};

// Throws Error(bad_data) for a key that is not known, or has an effect that is not implemented (hf_config_keys.cpp).
// type is the file's model_type.
void check_hf_keys(const HfReader&, const std::string& type);
// Reads rope_theta and rope_scaling; max_position_embeddings must have been read (hf_config.cpp).
void read_hf_rope(const HfReader&, ModelConfig&);
// Returns what transformers' class of a family has for keys that are absent; sizes of family gpt are 0.
ModelConfig hf_class_defaults(Family);
void read_token_ids(const HfReader&, const ModelConfig& of_class, ModelConfig&);

// These two use GPT-2's own words for the keys (hf_config.cpp).
ModelConfig read_gpt2_config(const HfReader&);
nlohmann::ordered_json gpt2_json(const ModelConfig&);

}  // namespace sestina
