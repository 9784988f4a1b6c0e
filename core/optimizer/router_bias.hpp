// Biases b of the choices of routers, which even out the loads of experts without a loss (Wang et al. 2024, arXiv
// 2408.15664; DeepSeek-V3). A router chooses the experts with the largest s_e + b_e and weighs them by s_e alone
// (kernels/model/router.hpp): no gradient reaches b. After each update
//   b_e += rate * sign(mean load - load_e),
// where loads are those of core/optimizer/expert_loads.hpp: whole numbers, compared without rounding, of which every
// layout makes the same bits. An update that is withheld moves no b, nor does one after model.router_bias_until.
#pragma once
#include <vector>

#include "core/layout/arena.hpp"
#include "core/optimizer/expert_loads.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

// The biases of a stage's layers, which lie among its frozen tensors.
template <class Exec, class T>
class RouterBias {
 public:
  RouterBias(const ModelConfig&, const Arena<Exec, T>&);

  // Moves the biases by the loads of update t on all ranks.
  void apply(const Exec&, std::int64_t t, const ExpertLoads&) const;

 private:
  std::size_t experts_;
  Acc<T> rate_;
  std::int64_t until_;                                         // 0: no end
  std::vector<Vector<Acc<T>, Exec>> bias_;                     // by layer, (E)
  Kokkos::View<Acc<T>*, HostSide<Exec>> move_;                 // (layers, E)
  Kokkos::View<Acc<T>*, typename Exec::memory_space> moving_;  // the same there; on the host in the same memory
};

}  // namespace sestina
