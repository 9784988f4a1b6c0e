// Weights in another form than dense as a stage handles them: first values, merges, and their way from and to dense
// ones in host memory. A stage with dense weights may call every function here: nothing happens.
#pragma once
#include <vector>

#include "core/layout/rotation_record.hpp"
#include "core/model/transformer.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

// Returns true where weights of some layer, in the form of the model, are merged after update t.
bool merges_after(const ModelConfig&, std::int64_t t);
// Merges the weights of those layers that are due, with permutations drawn from (seed, weight, number of the merge).
// All weights must be there, on every rank.
template <class Exec, class T>
void merge_if_due(Transformer<Exec, T>&, const Weights<Exec, T>&, std::uint64_t seed, std::int64_t t);
// Merges the weights of one layer after update t, whatever the schedule of merges says.
template <class Exec, class T>
void merge_early(Transformer<Exec, T>&, const Weights<Exec, T>&, int layer, std::uint64_t seed, std::int64_t t);

// Sets the dense weights that a run begins with: as those of a dense model, normal(0, initializer_range) from (seed, HF
// name, index); with init = "normalized" each row is divided by its length, with "uniform-spectrum" all singular values
// are made 1. Fences.
template <class Exec, class T>
void initialise_formed(const Exec&, Transformer<Exec, T>&, const Arena<Exec, T>&, const Weights<Exec, T>&,
                       std::uint64_t seed);

// set_dense takes one whole weight from host memory; get_dense copies its part here (rows, cols) to host memory. Both
// fence.
template <class Exec, class T>
void set_dense(const Exec&, Transformer<Exec, T>&, const Arena<Exec, T>&, const FormedWeight&, std::uint64_t seed,
               const Acc<T>* host);
template <class Exec, class T>
void get_dense(const Exec&, Transformer<Exec, T>&, const FormedWeight&, Acc<T>* host);

// Throws Error(internal) when no weight has this name.
template <class Exec, class T>
const FormedWeight& find_formed(const Weights<Exec, T>&, const std::string& name);

// The data-parallel ranks have the same weights and measure some of them each; of a weight that tensor parallelism does
// not cut, its first rank tells.
struct RotationShare {
  int dp = 1, dp_rank = 0, tp_rank = 0;
};

// Measures the rotations of a stage's weights (core/layout/rotation_record.hpp says what), with scratch of its own. It
// reads weights and nothing else, so that an update that is measured has the bits of one that is not.
template <class Exec, class T>
class RotationMeter {
 public:
  RotationMeter(const Exec&, const LinearOptions& here, const Weights<Exec, T>&, const RotationShare&, RotationLook);

  // Called after an update, before its merges, with all weights there. Fences.
  void measure(Transformer<Exec, T>&, const Weights<Exec, T>&);
  // Returns ||Q||_2 of the weights of this stage, in their order: 0 for one that another rank measures, or whose norm
  // is not a number. Fences.
  std::vector<double> norms(Transformer<Exec, T>&, const Weights<Exec, T>&);
  // Those of the last measure().
  const std::vector<RotationRecord>& records() const { return records_; }

 private:
  // Calls use(weight, its number) for those that this rank measures; returns how many there are.
  template <class Use>
  int for_each_own(const Weights<Exec, T>&, const Use&) const;

  RotationShare share_;
  Workspace<Exec> workspace_;
  Solver<Exec> solver_;
  std::vector<RotationRecord> records_;
};

}  // namespace sestina
