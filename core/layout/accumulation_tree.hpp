// Gradients of a step's micro-batches added in a fixed binary tree over their order, ((0 + 1) + (2 + 3)) + ..., block
// by block as the backward pass finishes them. Ranks that each hold an aligned part of the micro-batches then continue
// the same tree (kernels/blas/sums.hpp) and arrive at the bits of one rank that has them all. It costs one gradient
// buffer for each level but the last.
#pragma once
#include <vector>

#include "core/layout/arena.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {

// Adds to the sum of micro-batch `micro` of so many what the tree adds to it now; the result waits, and that of the
// last one goes to `result`, which may be own. waiting(level) is the memory in which a sum waits on its level.
template <class Exec, class A, class Waiting>
void add_in_tree(const Exec& exec, int micro, int micros, const Vector<A, Exec>& own, const Waiting& waiting,
                 const Vector<A, Exec>& result) {
  const bool last = micro + 1 == micros;
  int level = 0;
  WaitingSums<A> sums;
  for (; last ? (micro >> level) != 0 : ((micro >> level) & 1) != 0; ++level)
    if ((micro >> level) & 1) sums.add(waiting(level).data());
  add_waiting<Exec, A>(exec, own, sums, last ? result : waiting(level));
}

template <class Exec, class T>
class AccumulationTree {
 public:
  using A = Acc<T>;
  // Tensors of a block whose gradients are finished together: all, or those of one part of a two-part backward pass.
  enum class Part { all, input, weight };

  // micros: number of micro-batches of a step.
  AccumulationTree(const Arena<Exec, T>& arena, int micros) : micros_(micros), gradient_(arena.gradients()) {
    levels_ =
        decltype(levels_)("sestina::gradient_tree", static_cast<std::size_t>(tree_levels(micros)), gradient_.size());
    for (std::size_t i = 0; i < arena.size(); ++i) {
      const auto block = static_cast<std::size_t>(arena.specs()[i].block);
      if (ranges_.size() <= block) ranges_.resize(block + 1);
      const std::size_t begin = arena.layout().tensors[i].gradient_offset, n = arena.gradient(i).size();
      if (n == 0) continue;  // frozen, or another rank's
      std::vector<Range>& ranges = ranges_[block];
      const bool of_norm = arena.specs()[i].of_norm;
      if (!ranges.empty() && ranges.back().end == begin && ranges.back().of_norm == of_norm)
        ranges.back().end += n;
      else
        ranges.push_back({begin, begin + n, of_norm});
    }
  }
  // Returns the buffer that gradients of micro-batch `micro` are to be written to: that of the first level where they
  // wait there with nothing added to them, else the gradient buffer.
  A* place(int micro) const { return waits_at_once(micro) ? levels_.data() : gradient_.data(); }
  // Adds to the block's gradients of micro-batch `micro`, which lie in their place, what the tree adds to them now.
  // They are in the gradient buffer after the last micro-batch, else they wait on their level.
  void add(const Exec& exec, int block, int micro, Part part = Part::all) const {
    if (waits_at_once(micro)) return;
    for (const auto& [begin, end, of_norm] : ranges_[static_cast<std::size_t>(block)]) {
      if (part != Part::all && (part == Part::input) != of_norm) continue;
      const std::size_t from = begin, to = end;
      const Vector<A, Exec> own(gradient_.data() + from, to - from);
      add_in_tree<Exec, A>(
          exec, micro, micros_, own, [&](int level) { return at(level, from, to); }, own);
    }
  }

 private:
  bool waits_at_once(int micro) const { return micro % 2 == 0 && micro + 1 < micros_; }
  Vector<A, Exec> at(int level, std::size_t begin, std::size_t end) const {
    return Vector<A, Exec>(levels_.data() + static_cast<std::size_t>(level) * levels_.extent(1) + begin, end - begin);
  }

  int micros_;
  Vector<A, Exec> gradient_;
  Kokkos::View<A**, Kokkos::LayoutRight, typename Exec::memory_space> levels_;
  struct Range {  // elements of the gradient buffer
    std::size_t begin, end;
    bool of_norm;
  };
  std::vector<std::vector<Range>> ranges_;  // by block
};

}  // namespace sestina
