// The first value of a step that is not finite, as a stage finds it in passes that look for it. No Kokkos.
#pragma once
#include <string>

namespace sestina {

// The passes, in the order in which what they compute depends on each other.
enum class PassKind { forward, loss, backward };

struct FirstBad {
  PassKind pass = PassKind::forward;
  int stage = 0;
  std::string layer;   // by its HF name, "model.layers.2.mlp"
  std::string tensor;  // what of the layer: "output", or the HF name of a weight whose gradient it is
  int micro = 0;       // micro-batch of this rank in the update
  int sequence = -1;   // sequence of the micro-batch; -1: a sum over all of them
  int place = 0;       // looks at this pass before: equal on the tensor-parallel ranks of a stage
  double value = 0;    // infinite, or no number
};

}  // namespace sestina
