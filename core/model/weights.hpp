// The tensors of a model as the layers see them: matrices and vectors by their part in the mathematics, q, k, v and
// gate, up as one matrix each (they lie side by side). Weights and gradients have the same form.
#pragma once
#include <vector>

#include "core/arena.hpp"

namespace sestina {

// M element of matrices, V element of vectors.
template <class Exec, class M, class V>
struct ModelViews {
  struct Linear {
    Matrix<M, Exec> weight;  // (out, in)
    Vector<V, Exec> bias;    // (out), or empty
  };
  struct Norm {
    Vector<V, Exec> weight, bias;  // bias: LayerNorm, else empty
  };
  struct Layer {
    Norm attention_norm;  // ahead of attention, or behind it (olmo2)
    Linear qkv;           // (Q + 2K, D)
    Vector<V, Exec> q_norm, k_norm;
    Linear o;       // (D, Q)
    Norm mlp_norm;  // ahead of the MLP, or behind it (olmo2)
    Linear up;      // (2F, D) gate and up, or (F, D)
    Linear down;    // (D, F)
  };

  Matrix<M, Exec> embedding;  // (V, D), first stage (and last, when tied)
  Matrix<M, Exec> position;   // (positions, D) or empty
  std::vector<Layer> layers;  // of the range
  Norm norm;                  // last stage
  Matrix<M, Exec> head;       // (V, D), last stage; the embedding when tied
};

template <class Exec, class T>
using Weights = ModelViews<Exec, const T, const Acc<T>>;
template <class Exec, class T>
using Gradients = ModelViews<Exec, Acc<T>, Acc<T>>;

// Views into an arena made from tensor_specs(config, range).
template <class Exec, class T>
Weights<Exec, T> weights_of(const ModelConfig&, LayerRange, const Arena<Exec, T>&);
template <class Exec, class T>
Gradients<Exec, T> gradients_of(const ModelConfig&, LayerRange, const Arena<Exec, T>&);

}  // namespace sestina
