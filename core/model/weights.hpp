// The tensors of a model as the layers see them: matrices and vectors by their part in the mathematics, q, k, v and
// gate, up as one matrix each (they lie side by side). Weights and gradients have the same form.
#pragma once
#include <array>
#include <functional>
#include <vector>

#include "core/layout/arena.hpp"
#include "core/layout/weight_form.hpp"

namespace sestina {

// A weight (out, in) in another form than dense: where its parts lie, in the order of the form, which alone knows their
// types. As gradient: those of the parts that are trained, null for the others.
struct FormedWeight {
  std::string name;  // HF's, of the dense weight
  std::int64_t rows = 0, cols = 0;
  std::array<void*, most_parts> part{};
  TensorCut cut = TensorCut::none;  // where tensor parallelism cuts the layer
  int layer = -1;                   // of the whole model
};

// M element of matrices, V element of vectors.
template <class Exec, class M, class V>
struct ModelViews {
  struct Linear {
    Matrix<M, Exec> weight;  // (out, in); empty where `part` holds it
    Vector<V, Exec> bias;    // (out), or empty
    // Gradients whose tensors (q, k, v; gate, up) lie apart: `parts` ranges of rows in order.
    std::array<Matrix<M, Exec>, 3> part;
    int parts = 0;
    // Weights in another form than dense: instead of `weight`, one for each tensor, ranges of rows in order.
    std::vector<FormedWeight> formed;
  };
  struct Norm {
    Vector<V, Exec> weight, bias;  // bias: LayerNorm, else empty
  };
  struct Layer {
    Norm attention_norm;  // before attention, or after it (olmo2)
    Linear qkv;           // (Q + 2K, D)
    Vector<V, Exec> q_norm, k_norm;
    Linear o;       // (D, Q)
    Norm mlp_norm;  // before the MLP, or after it (olmo2)
    Linear up;      // (2F, D) gate and up, or (F, D)
    Linear down;    // (D, F)
  };

  Matrix<M, Exec> embedding;  // (V, D), first stage
  Matrix<M, Exec> position;   // (positions, D) or empty
  std::vector<Layer> layers;  // of the range
  Norm norm;                  // last stage
  // (V, D), last stage; the embedding when tied, which somebody else brings to a last stage that is not the first.
  Matrix<M, Exec> head;
};

template <class Exec, class T>
using Weights = ModelViews<Exec, const T, const Acc<T>>;
template <class Exec, class T>
using Gradients = ModelViews<Exec, Acc<T>, Acc<T>>;

// body(weight) for every weight in another form than dense, in layer order.
template <class Views, class Body>
void for_each_formed(const Views& views, const Body& body) {
  for (const auto& layer : views.layers)
    for (const auto* linear : {&layer.qkv, &layer.o, &layer.up, &layer.down})
      for (const FormedWeight& weight : linear->formed) body(weight);
}

// Views into an arena made from tensor_specs(config, range).
template <class Exec, class T>
Weights<Exec, T> weights_of(const ModelConfig&, LayerRange, const Arena<Exec, T>&);
// The same from other memory: the first elements of tensor i of the specs; part: of a weight in another form.
template <class Exec, class T>
Weights<Exec, T> weights_at(const ModelConfig&, LayerRange, const std::vector<TensorSpec>&,
                            const std::function<const T*(std::size_t)>& matrix,
                            const std::function<const Acc<T>*(std::size_t)>& vector,
                            const std::function<void*(std::size_t)>& part);
// apart: a part for each tensor even where they lie side by side, so that what is computed does not depend on who owns
// what (deterministic runs).
template <class Exec, class T>
Gradients<Exec, T> gradients_of(const ModelConfig&, LayerRange, const Arena<Exec, T>&, bool apart = false);

}  // namespace sestina
