// HF's names of the weights of a mixture of experts, without the layer's. No Kokkos.
#pragma once
#include <string>

#include "core/deck/model_config.hpp"

namespace sestina {

struct ExpertNames {
  const char *router, *experts, *gate, *up, *down;       // modules
  const char* shared = "mlp.shared_expert.";             // as qwen2_moe has it, without a gate of its own
  const char* choice_bias = ".e_score_correction_bias";  // of the router, as deepseek_v3 has it

  std::string gate_of(int expert) const { return experts + std::to_string(expert) + gate; }
  std::string up_of(int expert) const { return experts + std::to_string(expert) + up; }
  std::string down_of(int expert) const { return experts + std::to_string(expert) + down; }
};

inline ExpertNames expert_names(Family family) {
  if (family == Family::mixtral) return {"block_sparse_moe.gate", "block_sparse_moe.experts.", ".w1", ".w3", ".w2"};
  return {"mlp.gate", "mlp.experts.", ".gate_proj", ".up_proj", ".down_proj"};
}

}  // namespace sestina
