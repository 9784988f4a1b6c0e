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
  explicit GradientDigests(const Arena<Exec, T>&);
  // The tensors that have gradients, in the order of the digests.
  std::size_t size() const { return tensors_.size(); }
  std::vector<std::string> names() const;
  int block(std::size_t i) const { return tensors_[i].block; }

  // Says what to do in the next passes: to take digests in micro-batch `digests` (none: nowhere), and to flip bits of
  // tensor number flip.tensor modulo size() in micro-batch flip.micro.
  void begin(std::optional<int> digests, const std::optional<BitFlip>& flip);
  // Called when gradients of a block are there, in a buffer laid out as the arena's, and nothing has been added to
  // them, or sent, yet. micro: that of an update; none: a micro-batch that is computed again, which is the one meant.
  void finished(const Exec&, int block, Part, Acc<T>* gradients, std::optional<int> micro);
  // Returns the digests that were taken last. Fences.
  std::span<const std::uint64_t> fetch(const Exec&);

 private:
  struct Tensor {
    std::string name;
    std::size_t offset = 0, elements = 0;  // in the buffer of gradients
    int block = 0;
    bool of_norm = false;
  };
  std::vector<Tensor> tensors_;
  Kokkos::View<std::uint64_t*, typename Exec::memory_space> digests_;
  std::vector<std::uint64_t> host_;
  std::optional<int> digested_;  // micro-batch
  std::optional<BitFlip> flip_;
};

}  // namespace sestina
