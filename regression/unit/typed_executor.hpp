// An executor of one execution space and type, for tests that look into its stages.
#pragma once
#include "parallel/stage/stage_run.hpp"
#include "parallel/stage/stages_of.hpp"
#include "parallel/step/executor.hpp"

namespace sestina {

template <class Exec, class T>
class TypedExecutor final : public Executor {
 public:
  TypedExecutor(const Exec& exec, const Plan& plan, Communicator& world, Trace* trace = nullptr)
      : Executor(StagesOf<Exec, T>(exec), plan, world, trace), exec_(exec) {}
  const Exec& exec() const { return exec_; }
  StageRun<Exec, T>& run(std::size_t i = 0) const { return dynamic_cast<StageRun<Exec, T>&>(*runs()[i]); }
  Stage<Exec, T>& stage(std::size_t i = 0) const { return run(i).stage(); }
  std::vector<OwnedTensor<Exec, T>> tensors() const {  // owned, of all stages here
    std::vector<OwnedTensor<Exec, T>> all;
    for (std::size_t i = 0; i < stage_count(); ++i)
      all.insert(all.end(), stage(i).tensors().begin(), stage(i).tensors().end());
    return all;
  }
  typename TensorGroup<Exec>::Count take_group_count() { return run().shared().groups.tensor.take_count(); }

 private:
  Exec exec_;
};

}  // namespace sestina
