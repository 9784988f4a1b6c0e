// Digests of the gradients of one micro-batch, tensor by tensor, and a flip of bits in them where a fault is planned.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/layout/accumulation_tree.hpp"
#include "core/layout/arena.hpp"
#include "core/planned_fault.hpp"

namespace sestina {

template <class Exec, class T>
class GradientDigests {
 public:
  using Part = typename AccumulationTree<Exec, T>::Part;
  // gradients: the buffer, laid out as the arena's, that those of the first micro-batch are in.
  GradientDigests(const Arena<Exec, T>&, Acc<T>* gradients);
  // The tensors that have gradients, in the order of the digests.
  std::size_t size() const { return tensors_.size(); }
  std::vector<std::string> names() const;

  // Says what to do in the next micro-batch of which finished() tells: to take digests, and to flip bits of tensor
  // number flip.tensor modulo size().
  void begin(bool digests, const std::optional<BitFlip>& flip);
  // Called when gradients of a block are there and nothing has been added to them, or sent, yet.
  void finished(const Exec&, int block, Part);
  // Returns the digests that were taken last. Fences.
  std::span<const std::uint64_t> fetch(const Exec&);

 private:
  struct Tensor {
    std::string name;
    Vector<Acc<T>, Exec> gradient;
    int block = 0;
    bool of_norm = false;
  };
  std::vector<Tensor> tensors_;
  Kokkos::View<std::uint64_t*, typename Exec::memory_space> digests_;
  std::vector<std::uint64_t> host_;
  bool takes_ = false;
  std::optional<BitFlip> flip_;
};

}  // namespace sestina
