// What makes the stages of a rank, in the execution space and with the numbers that it was made for
// (parallel/stage/make_stages.hpp), and what it makes them from. No Kokkos.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/layout/rank_layout.hpp"
#include "parallel/comm/runtime.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/step/pipeline_stage.hpp"

namespace sestina {

// What a stage is on this rank.
struct StageParts {
  StagePlan plan;
  StagePlace place;
  RankLayout layout;
};

// The ranks that one works with.
struct RankGroups {
  Communicator* all = nullptr;  // ranks of its stages
  ProcessGrid grid;
  std::unique_ptr<Communicator> replicas;  // of the tensor-parallel group, those that hold the same key and value heads
  std::unique_ptr<Communicator> pipeline;  // with the same shards and samples, by their stages
};

// What the stages of one rank are made from. What it refers to must outlive them.
struct RankParts {
  const PlanInput& input;
  const PipelineOptions& pipe;  // of this rank
  const PipelineSchedule& schedule;
  const ModelPart& part;
  const PassOptions& passes;
  const BatchShare& share;
  RankGroups& groups;
  Trace* trace;  // null: none
  std::vector<StageParts> stages;
};

using PipelineStages = std::vector<PipelineStage*>;

// Gradients of a minibatch at the newest weights of all stages, in addition to those that an asynchronous pipeline
// computes at older ones: what the delay makes of their direction.
class FreshGradients {
 public:
  virtual ~FreshGradients() = default;
  // Between updates: of the next one, whose micro-batches, the first number `first`, have their tokens. Gradients of
  // the stages are written over.
  virtual void compute(std::int64_t first, int micros, double gradient_scale) = 0;
  // Of the complete gradients of stage i with those of the last compute(). Fences.
  virtual double cosine(std::size_t stage) = 0;
};

// Numbers of each tensor that is owned here, of an update that is sampled (core/diagnostics.hpp).
class UpdateDiagnostics {
 public:
  struct Tensor {
    std::string name;
    double weight_rms, update_rms, spectral_norm;
  };
  virtual ~UpdateDiagnostics() = default;
  virtual void before_update() = 0;
  virtual std::vector<Tensor> after_update() = 0;  // fences
};

class StageMaker {
 public:
  virtual ~StageMaker() = default;
  virtual std::string space() const = 0;   // name of the execution space
  virtual MemorySpace memory() const = 0;  // that the stages compute in
  virtual std::vector<std::unique_ptr<ForwardStage>> make_forward(const RankParts&) const = 0;
  virtual std::vector<std::unique_ptr<PipelineStage>> make_training(const RankParts&) const = 0;
  // Of stages that it made, which must outlive them; fresh gradients: of all of a pipeline, in order.
  virtual std::unique_ptr<FreshGradients> make_fresh_gradients(const PipelineStages&) const = 0;
  virtual std::unique_ptr<UpdateDiagnostics> make_diagnostics(const PipelineStages&) const = 0;
};

}  // namespace sestina
