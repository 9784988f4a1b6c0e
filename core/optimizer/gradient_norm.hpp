// The norm over all gradients, and the cosine between two of them.
#pragma once
#include <cmath>
#include <vector>

#include "core/layout/arena.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {

// The norm over all gradients, from sums of squares whose bits no layout changes: squares are summed in double by
// chunks of whole rows (chunk_rows), chunks of a tensor in order, tensors in the order of the specs.

template <class Exec, class T>
class GradientNorm {
 public:
  // notes: number of other values that `squares` fetches from the device in the same copy.
  explicit GradientNorm(const Arena<Exec, T>&, int notes = 0);
  Vector<double, Exec> note(int i) const { return values_.at(partials_ + static_cast<std::size_t>(i)); }  // for kernels
  double noted(int i) const { return values_[partials_ + static_cast<std::size_t>(i)]; }  // value at the last `squares`

  // Returns the sums of squares of what this rank owns; places that others fill are zero, so that a sum over the
  // data-parallel ranks completes them: one number for a tensor with one owner, one for each chunk of a tensor that is
  // sharded; the flag is last. Fences. The memory is reused by the next call.
  std::vector<double>& squares(const Exec&);
  // Divides the tensors into parts whose squares may be taken before others are there: set_of[i] is that of tensor i.
  void divide(const Arena<Exec, T>&, const std::vector<std::size_t>& set_of);
  // Takes the squares of a set; squares() does not take them again. Fences.
  void take(const Exec&, std::size_t set);
  // Returns the sum of squares of what this rank owns of a tensor of a set that has been taken.
  double taken(std::size_t tensor) const;
  // Returns the sums of squares of each shard, from complete `squares`: one number for each tensor, zero where another
  // rank of the tensor-parallel group counts it, and the flag last.
  std::vector<double>& by_tensor();
  // Returns the norm from complete sums by tensor.
  double norm() const;
  // Returns whether updates before the last call of `squares` wrote finite weights alone, on all ranks whose flags were
  // summed.
  bool weights_finite() const { return by_tensor_.back() == 0; }
  // Returns the flag that updates raise (kernels/optimizer/matrix_update.hpp); it travels after the squares and stays
  // up.
  double* nonfinite() const { return values_.at(values_.size() - 1).data(); }

 private:
  struct Part {  // an owned range of chunks
    std::size_t tensor = 0;
    std::size_t partial = 0, chunks = 0;  // first place in values_; number of chunks
    std::size_t slot = 0;                 // first place in squares_
    bool row_sharded = false;
  };
  struct Set {                                                                // of tensors
    std::size_t partial = 0, chunks = 0;                                      // of all of its parts
    Kokkos::View<ChunkedVector<Acc<T>>*, typename Exec::memory_space> table;  // one launch sums them all
    bool taken = false;                                                       // in this step
  };
  std::vector<Part> parts_;
  std::vector<Set> sets_;
  std::vector<std::size_t> first_slot_;  // by tensor, and one after the last
  std::vector<double> squares_, by_tensor_;
  std::size_t partials_ = 0;
  HostValues<Exec> values_;  // (partials_ + notes + 1), the flag last
};

// Returns min(1, clip_norm / (norm + 1e-6)), or 1 when clip_norm is 0.
inline double clip_scale(double norm, double clip_norm) {
  return clip_norm > 0 && norm + 1e-6 > clip_norm ? clip_norm / (norm + 1e-6) : 1.0;
}

// The cosine between the gradient that an update uses and another one of the same weights that was kept.

template <class Exec, class T>
class GradientCosine {
 public:
  explicit GradientCosine(const Arena<Exec, T>&);  // arena of one rank that owns all
  void keep(const Exec&);                          // keeps the gradients as they are
  double with_kept(const Exec&);                   // with the gradients as they are; NaN where one is zero. Fences

 private:
  Vector<Acc<T>, Exec> gradients_;
  Kokkos::View<Acc<T>*, typename Exec::memory_space> kept_;
  HostValues<Exec> sums_;  // by piece: products, and squares of both
};

}  // namespace sestina
