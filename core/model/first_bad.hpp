// What a stage finds in passes that are looked at: the first value of a step that is not finite, or digests of what
// they compute; and the flip of bits that one of them is to make on purpose. No Kokkos.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

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

// The bits of one tensor that a pass computed, as digests: two ranks that computed the same micro-batch compare them
// one after the other, to find where they first differ.
struct PassDigest {
  PassKind pass = PassKind::forward;
  int stage = 0;
  std::string layer, tensor;           // as in FirstBad
  int block = 0;                       // TensorSpec::block
  bool by_sequence = false;            // a digest for each sequence of the micro-batch, else one for all of them
  std::vector<std::uint64_t> digests;  // at least one
};

// One flip: which tensor it meets, as the one who flips counts them, where in it, how many bits of one word, and in a
// pass that of which micro-batch of the rank: in an activation of its forward pass, or in one of its gradients.
struct BitFlip {
  std::uint64_t tensor = 0, place = 0;
  int bits = 1, micro = 0;
  bool in_activation = false;
};

}  // namespace sestina
