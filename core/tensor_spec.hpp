// TensorSpec: the unit of optimization, ownership and checkpointing. Names and shapes are HF's and global. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/model_config.hpp"

namespace sestina {

enum class Role { matrix, embedding, head, vector };  // a tied embedding is an embedding

struct TensorSpec {
  std::string name;             // "model.layers.0.self_attn.q_proj.weight"
  std::int64_t rows = 0;        // out; length of a vector
  std::int64_t cols = 1;        // in; 1 for a vector
  Role role = Role::matrix;
  int layer = -1;               // -1: embedding, final norm, head
  int block = 0;                // what finishes together in backward: 0 embedding, 1 + layer, last: final norm and head
  bool is_vector() const { return role == Role::vector; }
  std::int64_t elements() const { return rows * cols; }
};

struct LayerRange { int begin = 0, end = 0; };  // layers of one pipeline stage

// Specs of the layers in range (embedding with layer 0; final norm and head with the last), in layer order:
// q, k, v adjacent, gate, up adjacent. gpt uses the same names plus biases where attention_bias, LayerNorm biases and
// model.embed_positions.weight when positions are learned.
std::vector<TensorSpec> tensor_specs(const ModelConfig&, LayerRange);
std::vector<TensorSpec> tensor_specs(const ModelConfig&);

}  // namespace sestina
