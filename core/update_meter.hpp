// Measures what an update does to the tensors that a rank updates (core/optimizer/base/update_record.hpp says what). It
// reads weights and nothing else, so that an update that is measured has the bits of one that is not.
#pragma once
#include <vector>

#include "core/diagnostics.hpp"
#include "core/model/seams.hpp"
#include "core/optimizer/base/update_record.hpp"
#include "core/optimizer/matrix_set.hpp"

namespace sestina {

template <class Exec, class T>
class UpdateMeter {
 public:
  struct Parts {
    std::vector<OwnedTensor<Exec, T>> tensors;  // with masters; of homed ones the whole
    std::vector<MatrixItem<Exec>> matrices;     // as their optimizer sees them: their masters lie in those above
    const OptimizerOptions& optimizer;
    bool deterministic = false;
    GroupOps<Exec>& group;                     // that of tensors that are `sharded`; must outlive the meter
    std::vector<GroupOps<Exec>*> groups = {};  // by tensor, in its place where not null; or empty
  };
  UpdateMeter(const Exec&, const Parts&);

  // Called before and after update number t, with factor times the peak rates; the second call is made together by all
  // ranks of the groups. Neither waits for a device.
  void before(const Exec& exec) { before_.keep(exec); }
  void after(const Exec&, std::int64_t t, double factor);
  // Returns the measures by tensor, in the order of the tensors; 0 for what another rank of the group counts. Fences.
  std::vector<UpdateMeasure> read(const Exec&) const;
  const std::string& name(std::size_t tensor) const { return tensors_[tensor].spec.name; }

 private:
  struct Direction {                             // a matrix, or a shard of one
    std::size_t tensor = 0, at = 0;              // its first element in the tensor
    std::size_t rows = 0, cols = 0, stride = 0;  // of the movement
    std::size_t skew_block = 0;                  // see MatrixItem
    std::int64_t side = 0;                       // the shorter one, of the whole matrix
    std::size_t gram = 0;                        // side of the Gram matrix that is made
    Op op = Op::none;                            // none: M M^T
    GroupOps<Exec>* group = nullptr;             // that of a shard; null: a matrix
    bool adds = true, told = true;               // adds its own products to the sum; is told by this rank
  };
  void add_matrix(const MatrixItem<Exec>&);
  void add_shard(std::size_t tensor, GroupOps<Exec>&);
  void measure(const Exec&, const Direction&, Vector<Acc<T>, Exec> movement, Vector<double, Exec> sums);

  std::vector<OwnedTensor<Exec, T>> tensors_;
  std::vector<TensorRates> rates_;
  const UpdateRules rules_;
  const UpdateSchedule schedule_;
  std::vector<Direction> directions_;  // in the order of their tensors
  WeightsBefore<Exec, T> before_;
  std::vector<double> decay_;  // by tensor, of the last update
  // Squares of movement and weight by tensor; after them trace and squares of the Gram matrix by direction.
  Kokkos::View<double*, typename Exec::memory_space> sums_;
  Gemm<Exec> gemm_;
  Workspace<Exec> workspace_;
};

}  // namespace sestina
