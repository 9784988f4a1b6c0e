// config.json of Hugging Face transformers, both ways: older files say rope_theta, rope_scaling and torch_dtype, newer
// ones rope_parameters and dtype. Both are read, both are written.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/deck/hf_config_reader.hpp"
#include "core/deck/model_config.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

struct HfName {
  Family family;
  const char *model_type, *architecture;
};
constexpr HfName hf_names[] = {{Family::llama, "llama", "LlamaForCausalLM"},
                               {Family::olmo2, "olmo2", "Olmo2ForCausalLM"},
                               {Family::qwen3, "qwen3", "Qwen3ForCausalLM"},
                               {Family::gpt, "sestina_gpt", "SestinaGPTForCausalLM"}};  // what is no GPT-2

Family read_family(const HfReader& in) {
  const std::string type = in.text("model_type", "");
  std::string allowed;
  for (const HfName& name : hf_names) {
    if (type == name.model_type) return name.family;
    allowed += fmt::format("\"{}\", ", name.model_type);
  }
  allowed += "\"gpt2\"";
  fail(ExitCode::bad_data, "{}: model_type: got \"{}\", allowed {}", in.where(), type, allowed);
}

// `rope` holds the scaling keys: rope_scaling of older files, rope_parameters of newer ones.
void read_scaling(const HfReader& rope, ModelConfig& c) {
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default") return;
  if (type != "llama3") rope.reject("rope_type", type, "\"default\", \"llama3\"");
  RopeScaling s;
  s.factor = rope.number("factor", s.factor, 1);
  s.low_freq_factor = rope.number("low_freq_factor", s.low_freq_factor);
  s.high_freq_factor = rope.number("high_freq_factor", s.high_freq_factor);
  s.original_max_position_embeddings =
      rope.integer("original_max_position_embeddings", s.original_max_position_embeddings);
  c.rope_scaling = s;
}

void read_rope(const HfReader& in, ModelConfig& c) {
  c.rope_theta = in.number("rope_theta", c.rope_theta, 1e-9);
  if (const Json* scaling = in.find("rope_scaling")) read_scaling(in.child("rope_scaling", *scaling), c);
  if (const Json* parameters = in.find("rope_parameters")) {
    const HfReader rope = in.child("rope_parameters", *parameters);
    c.rope_theta = rope.number("rope_theta", c.rope_theta, 1e-9);
    read_scaling(rope, c);
  }
  if (in.number("partial_rotary_factor", 1) != 1)
    in.reject("partial_rotary_factor", *in.find("partial_rotary_factor"), "1");
}

void refuse_unsupported(const HfReader& in) {
  in.must_be_off("mlp_bias");
  in.must_be_off("use_sliding_window");
  if (in.number("attention_dropout", 0) != 0)
    in.reject("attention_dropout", *in.find("attention_dropout"), "0 (not implemented)");
  if (const Json* types = in.find("layer_types"))
    for (const Json& type : *types)
      if (type != "full_attention") in.reject("layer_types", type, "\"full_attention\"");
}

void read_token_ids(const HfReader& in, ModelConfig& c) {
  c.bos_token_id = in.token("bos_token_id");
  c.eos_token_id = in.token("eos_token_id");
  c.pad_token_id = in.token("pad_token_id");
}

void refuse_defects(const ModelConfig& c, const std::string& where) {
  for (const ModelDefect& d : defects(c))
    fail(ExitCode::bad_data, "{}: {}: {}, allowed {}", where, d.key, d.what, d.allowed);
}

Json rope_json(const ModelConfig& c) {
  if (!c.rope_scaling) return {{"rope_type", "default"}};
  return {{"rope_type", "llama3"},
          {"factor", c.rope_scaling->factor},
          {"low_freq_factor", c.rope_scaling->low_freq_factor},
          {"high_freq_factor", c.rope_scaling->high_freq_factor},
          {"original_max_position_embeddings", c.rope_scaling->original_max_position_embeddings}};
}

Json token_json(std::int64_t id) { return id < 0 ? Json(nullptr) : Json(id); }

}  // namespace

ModelConfig ModelConfig::from_hf_json(const std::string& text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) fail(ExitCode::bad_data, "{}: not a JSON object", where);
  const HfReader in(json, where);
  if (in.text("model_type", "") == "gpt2") {
    ModelConfig c = read_gpt2_config(in);
    read_token_ids(in, c);
    refuse_defects(c, where);
    return c;
  }
  const Family family = read_family(in);
  refuse_unsupported(in);
  ModelConfig c = family_defaults(family);
  c.hidden_size = in.required("hidden_size");
  c.intermediate_size = in.required("intermediate_size");
  c.num_hidden_layers = in.required("num_hidden_layers");
  c.num_attention_heads = in.required("num_attention_heads");
  c.num_key_value_heads = in.integer("num_key_value_heads", c.num_attention_heads);
  const std::int64_t split = c.hidden_size / c.num_attention_heads;
  c.head_dim = in.integer("head_dim", family == Family::qwen3 ? 128 : split);
  c.vocab_size = in.required("vocab_size");
  c.max_position_embeddings = in.integer("max_position_embeddings", 2048);
  read_rope(in, c);
  c.rms_norm_eps =
      in.number("rms_norm_eps", family == Family::olmo2 ? 1e-5 : 1e-6);  // the defaults of transformers' classes
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", false);
  c.attention_bias = in.boolean("attention_bias", false);
  c.hidden_act = in.text("hidden_act", c.hidden_act);
  c.initializer_range = in.number("initializer_range", c.initializer_range);
  const std::string position = in.text("position", "rope");
  if (position != "rope" && position != "learned") in.reject("position", position, "\"rope\", \"learned\"");
  c.position = position == "learned" ? Position::learned : Position::rope;
  read_token_ids(in, c);
  refuse_defects(c, where);
  return c;
}

ModelConfig ModelConfig::from_hf_folder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::error_code ignored;
  std::ifstream file;  // a pipe is not waited for
  if (std::filesystem::is_regular_file(path, ignored)) file.open(path);
  if (!file.is_open()) fail(ExitCode::input_missing, "{}: cannot be opened", path);
  std::ostringstream text;
  text << file.rdbuf();
  ModelConfig c = from_hf_json(text.str(), path);
  c.from_hf = folder;
  return c;
}

std::string ModelConfig::hf_tokenizer() const {
  if (from_hf.empty()) return "";
  const auto path = std::filesystem::path(from_hf) / "tokenizer.json";
  return std::filesystem::exists(path) ? path.string() : "";
}

std::string ModelConfig::to_hf_json() const {
  if (family == Family::gpt && gpt2_difference(*this).empty()) {
    Json json = gpt2_json(*this);
    json["bos_token_id"] = token_json(bos_token_id);
    json["eos_token_id"] = token_json(eos_token_id);
    json["pad_token_id"] = token_json(pad_token_id);
    json["dtype"] = json["torch_dtype"] = "float32";
    return json.dump(2) + "\n";
  }
  const HfName& names = hf_names[static_cast<int>(family)];
  Json rope = rope_json(*this);
  Json json{{"architectures", {names.architecture}}, {"model_type", names.model_type}};
  json["hidden_size"] = hidden_size;
  json["intermediate_size"] = intermediate_size;
  json["num_hidden_layers"] = num_hidden_layers;
  json["num_attention_heads"] = num_attention_heads;
  json["num_key_value_heads"] = num_key_value_heads;
  json["head_dim"] = head_dim;
  json["vocab_size"] = vocab_size;
  json["max_position_embeddings"] = max_position_embeddings;
  json["rope_theta"] = rope_theta;
  json["rope_scaling"] = rope_scaling ? rope : Json(nullptr);
  rope["rope_theta"] = rope_theta;
  json["rope_parameters"] = rope;
  json["rms_norm_eps"] = rms_norm_eps;
  json["hidden_act"] = hidden_act;
  json["tie_word_embeddings"] = tie_word_embeddings;
  json["attention_bias"] = attention_bias;
  json["attention_dropout"] = 0.0;
  if (family == Family::llama) json["mlp_bias"] = false;
  if (family == Family::qwen3) json["use_sliding_window"] = false;
  if (family == Family::gpt) json["position"] = position == Position::learned ? "learned" : "rope";
  json["initializer_range"] = initializer_range;
  json["bos_token_id"] = token_json(bos_token_id);
  json["eos_token_id"] = token_json(eos_token_id);
  json["pad_token_id"] = token_json(pad_token_id);
  json["dtype"] = json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

}  // namespace sestina
