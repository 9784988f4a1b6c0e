// Diagnostics of tensors of which several ranks keep parts (metrics.tensors_every). Squares are summed over the parts;
// the spectral norms come from the same power iteration as on one rank (core/diagnostics.hpp), in which each rank
// multiplies its parts, and the vectors of all matrices of a stage are summed over its ranks at once. No weight moves.
#pragma once
#include <vector>

#include "core/diagnostics.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/stage/stage_run.hpp"
#include "parallel/step/stage_maker.hpp"

namespace sestina {

template <class Exec, class T>
class RankDiagnostics final : public UpdateDiagnostics {
 public:
  // The stages of this rank, which must outlive it.
  RankDiagnostics(const Exec&, const std::vector<StageRun<Exec, T>*>& stages, const Plan&);
  void before_update() override { before_.keep(exec_); }
  // Called by all ranks of a stage together; its first one returns the tensors.
  std::vector<Tensor> after_update() override;

 private:
  using A = Acc<T>;
  struct Measured {
    TensorSpec spec;                  // of the whole tensor
    std::vector<std::size_t> parts;   // in parts_: those of this rank that no other counts
    std::size_t right = 0, left = 0;  // first place of its vectors (cols) and (rows) among those of the stage
    double sigma = 0;
    bool ended = false;  // a zero matrix, or NaN
  };
  struct MeasuredStage {
    StageRun<Exec, T>* run;
    std::vector<Measured> tensors;
    std::vector<double> right, left;  // right: the start vectors, kept warm
  };
  void add_squares(const Measured&, double& weight, double& update);
  void find_norms(MeasuredStage&);
  void multiply(Op, const MeasuredStage&, const std::vector<double>& in, std::vector<double>& out);
  void multiply_part(Op, const OwnedTensor<Exec, T>&, const double* in, double* out);

  Exec exec_;
  std::vector<OwnedTensor<Exec, T>> parts_;
  WeightsBefore<Exec, T> before_;
  std::vector<MeasuredStage> stages_;
  Kokkos::View<A*, typename Exec::memory_space> in_, out_;
  Gemm<Exec> gemm_;
  Workspace<Exec> workspace_;
};

}  // namespace sestina
