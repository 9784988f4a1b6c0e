#include <array>

#include "core/deck/model_config.hpp"

namespace sestina {
namespace {

struct Preset {
  const char* name;
  Family family;
  std::int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary, positions;
  bool tied;
};

// llama-60m to 1b: the sizes of GaLore (Zhao et al. 2024); 3b, 8b, 13b: those of the POET-X paper, without grouped
// queries. olmo2, qwen3: the published models. asteria-660m: a GPT with rotary positions.
constexpr std::array presets{
    Preset{"llama-8m", Family::llama, 256, 688, 8, 8, 8, 32, 4096, 1024, false},
    Preset{"llama-60m", Family::llama, 512, 1376, 8, 8, 8, 64, 32000, 1024, false},
    Preset{"llama-130m", Family::llama, 768, 2048, 12, 12, 12, 64, 32000, 1024, false},
    Preset{"llama-134m", Family::llama, 768, 2048, 12, 12, 12, 64, 32000, 1024, false},
    Preset{"llama-350m", Family::llama, 1024, 2736, 24, 16, 16, 64, 32000, 1024, false},
    Preset{"llama-1b", Family::llama, 2048, 5461, 24, 32, 32, 64, 32000, 1024, false},
    Preset{"llama-3b", Family::llama, 2560, 7168, 32, 32, 32, 80, 32000, 2048, false},
    Preset{"llama-8b", Family::llama, 4096, 14336, 32, 32, 32, 128, 32000, 2048, false},
    Preset{"llama-13b", Family::llama, 5120, 13824, 40, 40, 40, 128, 32000, 2048, false},
    Preset{"olmo2-1b", Family::olmo2, 2048, 8192, 16, 16, 16, 128, 100352, 4096, false},
    Preset{"olmo2-7b", Family::olmo2, 4096, 11008, 32, 32, 32, 128, 100352, 4096, false},
    Preset{"qwen3-0.6b", Family::qwen3, 1024, 3072, 28, 16, 8, 128, 151936, 40960, true},
    Preset{"qwen3-1.7b", Family::qwen3, 2048, 6144, 28, 16, 8, 128, 151936, 40960, true},
    Preset{"qwen3-4b", Family::qwen3, 2560, 9728, 36, 32, 8, 128, 151936, 40960, true},
    Preset{"qwen3-8b", Family::qwen3, 4096, 12288, 36, 32, 8, 128, 151936, 40960, false},
    Preset{"qwen3-14b", Family::qwen3, 5120, 17408, 40, 40, 8, 128, 151936, 40960, false},
    Preset{"qwen3-32b", Family::qwen3, 5120, 25600, 64, 64, 8, 128, 151936, 40960, false},
    Preset{"asteria-660m", Family::gpt, 1408, 5632, 24, 22, 22, 64, 32128, 1024, true},
};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : presets) names.emplace_back(p.name);
  return names;
}

ModelConfig preset(const std::string& name) {
  for (const Preset& p : presets) {
    if (name != p.name) continue;
    ModelConfig c = family_defaults(p.family);
    c.preset = name;
    c.hidden_size = p.hidden;
    c.intermediate_size = p.intermediate;
    c.num_hidden_layers = p.layers;
    c.num_attention_heads = p.heads;
    c.num_key_value_heads = p.kv_heads;
    c.head_dim = p.head_dim;
    c.vocab_size = p.vocabulary;
    c.max_position_embeddings = p.positions;
    c.tie_word_embeddings = p.tied;
    return c;
  }
  fail(ExitCode::bad_deck, "model.preset: unknown preset, got \"{}\", allowed {}", name,
       fmt::join(preset_names(), ", "));
}

}  // namespace sestina
