// The tensors of a model as the layers see them: matrices and vectors by their part in the mathematics, q, k, v and
// gate, up as one matrix each (they are adjacent). Weights and gradients have the same form. D hidden, F intermediate,
// V vocabulary, Q and K widths of all query heads and all key heads.
#pragma once
#include <array>
#include <functional>
#include <vector>

#include "core/layout/arena.hpp"
#include "core/layout/weight_form.hpp"

namespace sestina {

// A weight (out, in) in another form than dense: where its parts lie, in the order of the form, which alone knows their
// types. As a gradient it has those of the parts that are trained, null for the others.
struct FormedWeight {
  std::string name;  // HF's name of the dense weight
  std::int64_t rows = 0, cols = 0;
  std::array<void*, most_parts> part{};
  TensorCut cut = TensorCut::none;  // where tensor parallelism cuts the layer
  int layer = -1;                   // number in the whole model
  void* sums = nullptr;             // as a gradient: what passes add up in its place (WeightForm::sums), or null
};

// M is the type of elements of matrices, V that of elements of vectors.
template <class Exec, class M, class V>
struct ModelViews {
  struct Linear {
    Matrix<M, Exec> weight;  // (out, in); empty where `part` holds it
    Vector<V, Exec> bias;    // (out), or empty
    // Gradients whose tensors (q, k, v; gate, up) are not adjacent: `parts` ranges of rows in order.
    std::array<Matrix<M, Exec>, 3> part;
    int parts = 0;
    // Weights in another form than dense, in the place of `weight`: one for each tensor, ranges of rows in order.
    std::vector<FormedWeight> formed;
  };
  struct Norm {
    Vector<V, Exec> weight, bias;  // weight: empty for a norm without; bias: LayerNorm, else empty
  };
  struct Layer {
    Norm attention_norm;  // before attention, or after it (olmo2)
    Linear qkv;           // (Q + 2K, D)
    Vector<V, Exec> q_norm, k_norm;
    Linear o;       // (D, Q)
    Norm mlp_norm;  // before the MLP, or after it (olmo2)
    Linear up;      // (2F, D) gate and up, or (F, D); of a mixture the shared expert's, empty without
    Linear down;    // (D, F)
    struct Expert {
      Linear up, down;  // (2W, D) gate and up, (D, W)
    };
    Linear router;                // (E, D), of a mixture
    Vector<V, Exec> choice_bias;  // (E) added to scores for the choice alone, or empty; it has no gradient
    std::vector<Expert> experts;  // those that are here, in order
  };

  Matrix<M, Exec> embedding;  // (V, D), first stage
  Matrix<M, Exec> position;   // (positions, D) or empty
  Norm embedding_norm;        // first stage, where the model has it
  std::vector<Layer> layers;  // layers of the range
  Norm norm;                  // last stage
  // (V, D), last stage; when tied it is the embedding, which a last stage that is not the first gets from the first
  // one.
  Matrix<M, Exec> head;
  Vector<V, Exec> head_bias;  // (V), last stage, or empty
};

template <class Exec, class T>
using Weights = ModelViews<Exec, const T, const Acc<T>>;
template <class Exec, class T>
using Gradients = ModelViews<Exec, Acc<T>, Acc<T>>;

// Calls body(weight) for every weight in another form than dense, in layer order.
template <class Views, class Body>
void for_each_formed(Views& views, const Body& body) {
  for (auto& layer : views.layers)
    for (auto* linear : {&layer.qkv, &layer.o, &layer.up, &layer.down})
      for (auto& weight : linear->formed) body(weight);
}

// Returns views into an arena made from tensor_specs(config, range).
template <class Exec, class T>
Weights<Exec, T> weights_of(const ModelConfig&, LayerRange, const Arena<Exec, T>&);
// Returns views of other memory, from the first elements of tensor i of the specs; part: of a weight in another form.
template <class Exec, class T>
Weights<Exec, T> weights_at(const ModelConfig&, LayerRange, const std::vector<TensorSpec>&,
                            const std::function<const T*(std::size_t)>& matrix,
                            const std::function<const Acc<T>*(std::size_t)>& vector,
                            const std::function<void*(std::size_t)>& part);
// Returns views into a buffer that is laid out as the arena's gradients, or into these themselves (null). apart: a part
// for each tensor even where they are adjacent, so that what is computed does not depend on who owns what
// (deterministic runs).
template <class Exec, class T>
Gradients<Exec, T> gradients_of(const ModelConfig&, LayerRange, const Arena<Exec, T>&, bool apart = false,
                                Acc<T>* buffer = nullptr);

}  // namespace sestina
