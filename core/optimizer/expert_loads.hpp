// The loads of a stage's experts: for each expert of each layer, how many of an update's tokens chose it. Passes add up
// those of this rank (core/model/experts.cpp); they are whole numbers, and so are their sums over all ranks with other
// tokens, which are exact in fp64 below 2^53: what is made of them does not depend on the layout. Passes that belong to
// no update (evaluations, audits, blocks that are computed again) do not count.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/layout/tensor_spec.hpp"
#include "kernels/blas/host_values.hpp"

namespace sestina {

class ExpertLoads {
 public:
  ExpertLoads(LayerRange, std::int64_t experts);

  // Makes places for the loads of so many minibatches, which take turns in them: those that passes may be under way of.
  // There is one at first.
  void keep(int minibatches);
  void start_step(std::int64_t minibatch = 0);  // forgets the loads that lie in its place
  // Returns where passes add up the loads of layer number i of the stage, (E).
  Vector<std::int64_t, Host> load(std::size_t i, std::int64_t minibatch = 0);
  // Returns the loads (layers, E) of this rank, to be completed by the sums over all ranks with other tokens.
  std::vector<double>& take(std::int64_t minibatch = 0);

  // Called after that: the loads of layer number i, (E); and the largest load of all layers.
  std::span<const double> of_layer(std::size_t i) const { return {loads_.data() + i * experts_, experts_}; }
  LargestLoad largest() const;

 private:
  std::int64_t* place_of(std::int64_t minibatch);

  LayerRange layers_;
  std::size_t experts_;
  std::int64_t places_ = 1;
  std::vector<std::int64_t> counts_;  // (places, layers, E), of this rank
  std::vector<double> loads_;         // (layers, E), of all ranks
};

}  // namespace sestina
