// Biases b of the choices of routers, which even out the loads of experts without a loss (Wang et al. 2024, arXiv
// 2408.15664; DeepSeek-V3). A router chooses the experts with the largest s_e + b_e and weighs them by s_e alone
// (kernels/model/router.hpp): no gradient reaches b. After each update
//   b_e += rate * sign(mean load - load_e),
// where the load of an expert is the number of the update's tokens that chose it, on all ranks together. Loads are
// whole numbers and compared without rounding: every layout makes the same bits of the same choices. Passes that belong
// to no update (evaluations, audits, blocks that are computed again) do not count, and an update that is withheld moves
// no b.
#pragma once
#include <vector>

#include "core/layout/arena.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

// The biases of a stage's layers, which lie among its frozen tensors.
template <class Exec, class T>
class RouterBias {
 public:
  RouterBias(const ModelConfig&, const Arena<Exec, T>&);

  void start_step();  // forgets the loads of an earlier update
  // Returns where passes add up the loads of layer number i of the stage, (E).
  Vector<std::int64_t, Host> load(std::size_t i);
  // Returns the loads (layers, E) of this rank, to be completed by the sums over all ranks with other tokens: below
  // 2^53 these are exact.
  std::vector<double>& take();
  void apply(const Exec&) const;  // moves the biases after that

 private:
  std::size_t experts_;
  Acc<T> rate_;
  std::vector<Vector<Acc<T>, Exec>> bias_;                     // by layer, (E)
  std::vector<std::int64_t> load_;                             // (layers, E), of this rank
  std::vector<double> loads_;                                  // (layers, E), of all ranks
  Kokkos::View<Acc<T>*, HostSide<Exec>> move_;                 // (layers, E)
  Kokkos::View<Acc<T>*, typename Exec::memory_space> moving_;  // the same there; on the host in the same memory
};

}  // namespace sestina
