// Rotary positions in config.json: rope_scaling of older files, with rope_theta next to it, and rope_parameters of
// newer ones, with rope_theta inside. transformers 5 takes rope_scaling for rope_parameters where both are there, and a
// rope_theta inside before the one outside (modeling_rope_utils.py).
#include <algorithm>

#include "core/deck/hf_config_reader.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

struct Rope {
  double theta = 10000;  // transformers' default in every family
  std::optional<RopeScaling> scaling;
};

std::string type_of(const HfReader& rope) { return rope.text("rope_type", rope.text("type", "default")); }

// A key that the type has no use for is a mistake, or a model by layer type.
void refuse_other_keys(const HfReader& rope, bool scaled) {
  constexpr const char* always[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
  constexpr const char* when_scaled[] = {"factor", "low_freq_factor", "high_freq_factor",
                                         "original_max_position_embeddings"};
  const auto has = [](const auto& list, const std::string& key) {
    return std::find(std::begin(list), std::end(list), key) != std::end(list);
  };
  for (const auto& [key, value] : rope.object().items())
    if (!has(always, key) && !(scaled && has(when_scaled, key)))
      rope.reject(key.c_str(), value,
                  value.is_object() ? "one rope for all layers (by layer type: not implemented)"
                                    : fmt::format("no key of this name next to rope_type \"{}\"", type_of(rope)));
  if (rope.number("partial_rotary_factor", 1) != 1)
    rope.reject("partial_rotary_factor", *rope.find("partial_rotary_factor"), "1 (not implemented)");
}

// outer: the whole file.
Rope read_one(const HfReader& rope, const HfReader& outer, const ModelConfig& c) {
  constexpr double least_theta = 1e-9;
  Rope read;
  read.theta = rope.number("rope_theta", outer.number("rope_theta", read.theta, least_theta), least_theta);
  const std::string type = type_of(rope);
  if (type != "default" && type != "llama3")
    rope.reject(rope.find("rope_type") ? "rope_type" : "type", type, "\"default\", \"llama3\"");
  refuse_other_keys(rope, type == "llama3");
  if (type == "default") return read;
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"})
    if (!rope.find(key)) fail(ExitCode::bad_data, "{}: {}: missing", rope.where(), key);
  RopeScaling s;
  s.factor = rope.number("factor", 0, 1);
  s.low_freq_factor = rope.number("low_freq_factor", 0, least_theta);
  s.high_freq_factor = rope.number("high_freq_factor", 0, least_theta);
  // One next to the table wins over the one inside, as transformers has it.
  s.original_max_position_embeddings = outer.integer(
      "original_max_position_embeddings", rope.integer("original_max_position_embeddings", c.max_position_embeddings));
  read.scaling = s;
  return read;
}

bool same(const Rope& a, const Rope& b) {
  if (a.theta != b.theta || a.scaling.has_value() != b.scaling.has_value()) return false;
  if (!a.scaling) return true;
  return a.scaling->factor == b.scaling->factor && a.scaling->low_freq_factor == b.scaling->low_freq_factor &&
         a.scaling->high_freq_factor == b.scaling->high_freq_factor &&
         a.scaling->original_max_position_embeddings == b.scaling->original_max_position_embeddings;
}

}  // namespace

void read_hf_rope(const HfReader& in, ModelConfig& c) {
  static const Json none = Json::object();
  std::optional<Rope> rope;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* table = in.find(key);
    if (!table) continue;
    const HfReader inner = in.child(key, *table);  // which refuses what is no object
    if (table->empty()) continue;
    const Rope read = read_one(inner, in, c);
    if (rope && !same(*rope, read)) in.reject(key, *table, "the rope of rope_scaling, or one of the two alone");
    rope = read;
  }
  if (!rope) rope = read_one(HfReader(none, in.where()), in, c);
  c.rope_theta = rope->theta;
  c.rope_scaling = rope->scaling;
}

}  // namespace sestina
