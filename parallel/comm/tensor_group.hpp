// A tensor-parallel group over a communicator: the GroupOps of the model. Every sum is an exchange of parts followed by
// a sum in tree order (kernels/blas/sums.hpp), so results are the same bits on all ranks and in all runs.
#pragma once
#include <utility>

#include "core/model/seams.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

template <class Exec>
class TensorGroup final : public GroupOps<Exec> {
 public:
  explicit TensorGroup(Communicator& group) : group_(group) {}
  // Takes the memory for what arrives in the largest sum, so that sums take none: as planned by
  // parallel/exchange/tensor_sums.hpp.
  void reserve(std::size_t bytes);
  int size() const override { return group_.size(); }
  int rank() const override { return group_.rank(); }

  void sum(const Exec&, Vector<float, Exec>) override;
  void sum(const Exec&, Vector<bf16, Exec>) override;
  void sum(const Exec&, Vector<double, Exec>) override;
  void max(const Exec&, Vector<float, Exec>) override;
  void max(const Exec&, Vector<double, Exec>) override;
  void gather(const Exec&, Matrix<const float, Exec> part, Matrix<float, Exec> whole) override;
  void gather(const Exec&, Matrix<const bf16, Exec> part, Matrix<bf16, Exec> whole) override;
  void gather(const Exec&, Matrix<const double, Exec> part, Matrix<double, Exec> whole) override;
  void scatter_sum(const Exec&, Matrix<float, Exec> whole, Matrix<float, Exec> part) override;
  void scatter_sum(const Exec&, Matrix<bf16, Exec> whole, Matrix<bf16, Exec> part) override;
  void scatter_sum(const Exec&, Matrix<double, Exec> whole, Matrix<double, Exec> part) override;

  void complete() override { group_.complete("tensor-parallel group"); }

  // The calls since the last take_count(): what a step really sends.
  struct Count {
    std::int64_t gathers = 0, scatter_sums = 0, reductions = 0;
  };
  Count take_count() { return std::exchange(count_, {}); }

 private:
  template <class T>
  void reduce(const Exec&, Vector<T, Exec>, bool sum);
  template <class T>
  void rows(const Exec&, Matrix<const T, Exec> part, Matrix<T, Exec> whole);
  template <class T>
  void sums(const Exec&, Matrix<T, Exec> whole, Matrix<T, Exec> part);
  // Elements [cut(r), cut(r + 1)) of my `from` go to rank r; its elements [cut(rank), ...) come to `received`.
  template <class T, class Cut>
  void scatter(const Exec&, const char* name, const T* from, const Cut& cut, Vector<T, Exec> received);
  template <class T, class Cut>
  void collect(const Exec&, const char* name, T* whole, const Cut& cut);
  template <class T>
  Vector<T, Exec> staging(std::size_t n);

  Communicator& group_;
  Kokkos::View<std::byte*, typename Exec::memory_space>
      staging_;  // parts of other ranks; grows for a sum that nobody planned
  Count count_;
};

}  // namespace sestina
