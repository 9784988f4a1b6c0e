// config.json of Hugging Face transformers, both ways: older files say rope_theta, rope_scaling and torch_dtype, newer
// ones rope_parameters and dtype. Both are read, both are written.
#include "core/deck/hf_config_reader.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/deck/model_config.hpp"
#include "core/deck/model_experts.hpp"

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
                               {Family::gpt, "sestina_gpt", "SestinaGPTForCausalLM"},  // for a gpt that is no GPT-2
                               {Family::qwen3_moe, "qwen3_moe", "Qwen3MoeForCausalLM"},
                               {Family::mixtral, "mixtral", "MixtralForCausalLM"},
                               // for a mixture that no class of transformers has
                               {Family::qwen3_moe, "sestina_moe", "SestinaMoeForCausalLM"}};

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

void require_full_attention(const HfReader& in, const ModelConfig& c) {
  const Json* types = in.find("layer_types");
  if (!types) return;
  if (!types->is_array() || types->size() != static_cast<std::size_t>(c.num_hidden_layers))
    in.reject("layer_types", *types, fmt::format("a list for {} layers", c.num_hidden_layers));
  for (const Json& type : *types)
    if (type != "full_attention") in.reject("layer_types", type, "\"full_attention\"");
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

// Reads the switches of our own class, which writes them all; files of older versions lack them.
void read_hf_switches(const HfReader& in, ModelConfig& c) {
  const auto word = [&](const char* key, const char* usual, const char* other) {  // whether it is the other one
    const std::string text = in.text(key, usual);
    if (text != usual && text != other) in.reject(key, text, fmt::format("\"{}\", \"{}\"", usual, other));
    return text == other;
  };
  c.norm = word("norm", "layernorm", "rmsnorm") ? ModelConfig::Norm::rmsnorm : ModelConfig::Norm::layernorm;
  c.norm_gain = in.boolean("norm_gain", true);
  c.qk_norm = in.boolean("qk_norm", false);
  c.qk_norm_gain = in.boolean("qk_norm_gain", true);
  c.embedding_norm = in.boolean("embedding_norm", false);
  c.partial_rotary_factor = in.number("partial_rotary_factor", 1, least_eps);
  if (c.partial_rotary_factor > 1)
    in.reject("partial_rotary_factor", c.partial_rotary_factor, "a number above 0, at most 1");
  c.attention_multiplier = in.number("attention_multiplier", 0);
  c.final_logit_softcapping = in.number("final_logit_softcapping", 0);
  c.softcapping_form =
      word("softcapping_form", "tanh", "root") ? ModelConfig::SoftcapForm::root : ModelConfig::SoftcapForm::tanh;
  c.head_bias = in.boolean("head_bias", false);
}

void write_hf_switches(const ModelConfig& c, Json& json) {
  json["norm"] = c.layer_norms() ? "layernorm" : "rmsnorm";
  json["norm_gain"] = c.norm_gain;
  json["qk_norm"] = c.qk_norm;
  json["qk_norm_gain"] = c.qk_norm_gain;
  json["embedding_norm"] = c.embedding_norm;
  json["partial_rotary_factor"] = c.partial_rotary_factor;
  json["attention_multiplier"] = c.attention_multiplier;
  json["final_logit_softcapping"] = c.final_logit_softcapping;
  json["softcapping_form"] = c.softcapping_form == ModelConfig::SoftcapForm::root ? "root" : "tanh";
  json["head_bias"] = c.head_bias;
}

Json token_json(std::int64_t id) { return id < 0 ? Json(nullptr) : Json(id); }

void read_sizes(const HfReader& in, const ModelConfig& of_class, ModelConfig& c) {
  c.hidden_size = in.size("hidden_size", of_class.hidden_size);
  c.intermediate_size = in.size("intermediate_size", of_class.intermediate_size);
  c.num_hidden_layers = in.size("num_hidden_layers", of_class.num_hidden_layers);
  c.num_attention_heads = in.size("num_attention_heads", of_class.num_attention_heads);
  // In most classes an absent key means as many as heads, as null does.
  const bool as_heads = in.object().contains("num_key_value_heads") || of_class.num_key_value_heads == 0;
  c.num_key_value_heads =
      in.size("num_key_value_heads", as_heads ? c.num_attention_heads : of_class.num_key_value_heads);
  const std::int64_t split = c.hidden_size / c.num_attention_heads;
  c.head_dim = in.size("head_dim", of_class.head_dim > 0 ? of_class.head_dim : std::max<std::int64_t>(split, 1));
  c.vocab_size = in.size("vocab_size", of_class.vocab_size);
  c.max_position_embeddings = in.size("max_position_embeddings", of_class.max_position_embeddings);
}

}  // namespace

ModelConfig hf_class_defaults(Family family) {
  ModelConfig c = family_defaults(family);
  c.head_dim = family == Family::qwen3 ? 128 : 0;
  const bool qwen = family == Family::qwen3 || family == Family::qwen3_moe, mixtral = family == Family::mixtral;
  c.rms_norm_eps = family == Family::olmo2 || mixtral ? 1e-5 : 1e-6;
  c.max_position_embeddings = qwen ? 32768 : mixtral ? 131072 : 2048;
  if (family == Family::gpt) return c;  // only our own class, which writes every size
  c.hidden_size = 4096;
  c.intermediate_size = family == Family::qwen3 ? 22016 : 11008;
  c.num_hidden_layers = c.num_attention_heads = 32;
  if (family == Family::llama) {
    c.vocab_size = 32000;
    c.bos_token_id = 1;
    c.eos_token_id = 2;
  } else if (family == Family::olmo2) {
    c.vocab_size = 50304;
    c.eos_token_id = 50279;
    c.pad_token_id = 1;
  } else if (mixtral) {
    c.intermediate_size = 14336;
    c.vocab_size = 32000;
    c.num_key_value_heads = 8;
    c.bos_token_id = 1;
    c.eos_token_id = 2;
  } else {
    c.vocab_size = 151936;
    c.num_key_value_heads = 32;
  }
  if (family == Family::qwen3_moe) {
    c.hidden_size = 2048;
    c.intermediate_size = 6144;
    c.num_hidden_layers = 24;
    c.num_key_value_heads = 4;
  }
  return c;
}

void read_token_ids(const HfReader& in, const ModelConfig& of_class, ModelConfig& c) {
  c.bos_token_id = in.token("bos_token_id", of_class.bos_token_id, c.vocab_size);
  c.eos_token_id = in.token("eos_token_id", of_class.eos_token_id, c.vocab_size);
  c.pad_token_id = in.token("pad_token_id", of_class.pad_token_id, c.vocab_size);
}

ModelConfig ModelConfig::from_hf_json(const std::string& text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object()) fail(ExitCode::bad_data, "{}: not a JSON object", where);
  const HfReader in(json, where);
  const std::string type = in.text("model_type", "");
  if (type == "gpt2") {
    check_hf_keys(in, type);
    const ModelConfig c = read_gpt2_config(in);
    refuse_defects(c, where);
    return c;
  }
  const Family family = read_family(in);
  check_hf_keys(in, type);
  const ModelConfig of_class = hf_class_defaults(family);
  ModelConfig c = family_defaults(family);
  read_sizes(in, of_class, c);
  require_full_attention(in, c);
  read_hf_rope(in, c);
  c.rms_norm_eps = in.number("rms_norm_eps", of_class.rms_norm_eps, least_eps);
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", false);
  c.attention_bias = in.boolean("attention_bias", false);
  c.hidden_act = in.text("hidden_act", c.hidden_act);
  if (c.hidden_act == "swish" && c.gated()) c.hidden_act = "silu";  // one function, two names
  c.initializer_range = in.number("initializer_range", c.initializer_range);
  const std::string position = in.text("position", "rope");
  if (position != "rope" && position != "learned") in.reject("position", position, "\"rope\", \"learned\"");
  c.position = position == "learned" ? Position::learned : Position::rope;
  if (family == Family::gpt) read_hf_switches(in, c);
  read_hf_experts(in, c);
  read_token_ids(in, of_class, c);
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
  const HfName& names = mixture_difference(*this).empty() ? hf_names[static_cast<int>(family)] : std::end(hf_names)[-1];
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
  if (family == Family::qwen3 || family == Family::qwen3_moe) json["use_sliding_window"] = false;
  write_hf_experts(*this, json);
  if (family == Family::gpt) json["position"] = position == Position::learned ? "learned" : "rope";
  if (family == Family::gpt) write_hf_switches(*this, json);
  json["initializer_range"] = initializer_range;
  json["bos_token_id"] = token_json(bos_token_id);
  json["eos_token_id"] = token_json(eos_token_id);
  json["pad_token_id"] = token_json(pad_token_id);
  json["dtype"] = json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

// Rotary positions in config.json lie in rope_scaling of older files, with rope_theta next to it, or in rope_parameters
// of newer ones, with rope_theta inside. transformers 5 takes rope_scaling for rope_parameters where both are there,
// and a rope_theta inside before the one outside (modeling_rope_utils.py).

namespace {

using Json = nlohmann::ordered_json;

struct Rope {
  double theta = 10000;  // transformers' default in every family but mixtral
  std::optional<RopeScaling> scaling;
};

std::string type_of(const HfReader& rope) { return rope.text("rope_type", rope.text("type", "default")); }

// Refuses a key that the type has no use for: it is a mistake, or a model by layer type.
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

// Reads one table; `outer` is the whole file.
Rope read_one(const HfReader& rope, const HfReader& outer, const ModelConfig& c) {
  constexpr double least_theta = 1e-9;
  Rope read;
  if (c.family == Family::mixtral) read.theta = 1e6;
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
  // A key next to the table takes precedence over one inside, as transformers has it.
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
    const HfReader inner = in.child(key, *table);  // refuses what is no object
    if (table->empty()) continue;
    const Rope read = read_one(inner, in, c);
    if (rope && !same(*rope, read)) in.reject(key, *table, "the rope of rope_scaling, or one of the two alone");
    rope = read;
  }
  if (!rope) rope = read_one(HfReader(none, in.where()), in, c);
  c.rope_theta = rope->theta;
  c.rope_scaling = rope->scaling;
}

// GPT-2 in config.json: transformers' GPT2Config has its own words for the sizes. It can describe a gpt of ours with
// learned positions, a bias on every product, as many key and value heads as heads, and heads that make up the hidden
// size.
std::string gpt2_difference(const ModelConfig& c) {
  if (c.family != Family::gpt) return fmt::format("family is {}, not gpt", name(c.family));
  if (c.position != ModelConfig::Position::learned) return "position is rope, GPT-2 has learned positions";
  if (!c.attention_bias) return "attention_bias is false, GPT-2 has biases";
  if (c.num_key_value_heads != c.num_attention_heads)
    return fmt::format("{} key/value heads for {} heads, GPT-2 has as many", c.num_key_value_heads,
                       c.num_attention_heads);
  if (c.head_dim * c.num_attention_heads != c.hidden_size)
    return fmt::format("{} heads of {} are not hidden_size {}", c.num_attention_heads, c.head_dim, c.hidden_size);
  if (!c.layer_norms()) return "norm is rmsnorm, GPT-2 has LayerNorm";
  if (c.qk_norm) return "qk_norm is true, GPT-2 does not norm q and k";
  if (c.embedding_norm) return "embedding_norm is true, GPT-2 has no norm there";
  if (c.attention_multiplier != 0) return "attention_multiplier is set, GPT-2 divides scores by the root of head_dim";
  if (c.final_logit_softcapping != 0) return "final_logit_softcapping is set, GPT-2 does not bound logits";
  if (c.head_bias) return "head_bias is true, the head of GPT-2 has none";
  return "";
}

namespace {

// Reads a key by GPT2Config's other name too, which takes precedence where both are there.
std::int64_t either(const HfReader& in, const char* key, const char* other, std::int64_t fallback) {
  return in.size(other, in.size(key, fallback));
}

}  // namespace

ModelConfig read_gpt2_config(const HfReader& in) {
  ModelConfig c = family_defaults(Family::gpt), of_class;
  of_class.bos_token_id = of_class.eos_token_id = 50256;
  c.hidden_size = either(in, "n_embd", "hidden_size", 768);
  c.intermediate_size = in.size("n_inner", 4 * c.hidden_size);
  c.num_hidden_layers = either(in, "n_layer", "num_hidden_layers", 12);
  c.num_attention_heads = c.num_key_value_heads = either(in, "n_head", "num_attention_heads", 12);
  c.head_dim = c.hidden_size / c.num_attention_heads;
  if (c.head_dim * c.num_attention_heads != c.hidden_size)
    in.reject("n_head", c.num_attention_heads, fmt::format("a divisor of n_embd = {}", c.hidden_size));
  c.vocab_size = in.size("vocab_size", 50257);
  c.max_position_embeddings = either(in, "n_positions", "max_position_embeddings", 1024);
  c.rms_norm_eps = in.number("layer_norm_epsilon", 1e-5, least_eps);
  c.hidden_act = in.text("activation_function", "gelu_new");
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", true);
  c.initializer_range = in.number("initializer_range", c.initializer_range);
  c.attention_bias = true;
  c.position = ModelConfig::Position::learned;
  read_token_ids(in, of_class, c);
  return c;
}

nlohmann::ordered_json gpt2_json(const ModelConfig& c) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", c.hidden_size},
          {"n_inner", c.intermediate_size},
          {"n_layer", c.num_hidden_layers},
          {"n_head", c.num_attention_heads},
          {"n_positions", c.max_position_embeddings},
          {"vocab_size", c.vocab_size},
          {"activation_function", c.hidden_act},
          {"layer_norm_epsilon", c.rms_norm_eps},
          {"tie_word_embeddings", c.tie_word_embeddings},
          {"initializer_range", c.initializer_range},
          // The model has no dropout.
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

}  // namespace sestina
