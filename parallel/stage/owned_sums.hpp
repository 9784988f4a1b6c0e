// Sums over the micro-batches of a step of the gradients that a rank owns, where whole gradients take turns in places
// (parallel/plan/block_turns.hpp): each micro-batch's sum over the data-parallel ranks comes by itself. Time i adds up
// the micro-batches i dp to (i + 1) dp - 1, so that in deterministic runs a tree over time goes on with the tree over
// the ranks (core/layout/accumulation_tree.hpp): with a power of two of ranks it is the tree of one rank that has all
// micro-batches. It costs a buffer of what is owned for each level.
#pragma once
#include "core/layout/accumulation_tree.hpp"
#include "core/layout/rank_layout.hpp"

namespace sestina {

template <class Exec>
class OwnedSums {
 public:
  // sums: the part of the gradient buffer with what is owned. micros: micro-batches of a step.
  OwnedSums(Vector<float, Exec> sums, int micros, bool deterministic)
      : sums_(sums),
        micros_(micros),
        tree_(deterministic),
        levels_("sestina::gradient_tree", static_cast<std::size_t>(deterministic ? tree_levels(micros) : 0),
                sums.size()) {}

  int micros() const { return micros_; }
  // Adds `part`, the sum over the ranks for micro-batch `micro`, to what lies from `begin` on. The part is used up.
  void add(const Exec& exec, int micro, Vector<float, Exec> part, std::size_t begin) const {
    const Vector<float, Exec> sum(sums_.data() + begin, part.size());
    if (tree_) {
      const auto waiting = [&](int level) {
        return Vector<float, Exec>(levels_.data() + static_cast<std::size_t>(level) * sums_.size() + begin,
                                   part.size());
      };
      add_in_tree<Exec, float>(exec, micro, micros_, part, waiting, sum);
    } else if (micro > 0) {
      add_to<Exec, float>(exec, part, sum);
    } else {
      convert<Exec, float, float>(exec, part, sum);
    }
  }

 private:
  Vector<float, Exec> sums_;
  int micros_;
  bool tree_;
  Kokkos::View<float**, Kokkos::LayoutRight, typename Exec::memory_space> levels_;
};

}  // namespace sestina
