// The maker of a rank's stages, in the execution space and with the numbers that it was made for
// (parallel/stage/make_stages.hpp), and what it makes them from. No Kokkos.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/layout/rank_layout.hpp"
#include "core/model/first_bad.hpp"
#include "core/planned_fault.hpp"
#include "parallel/comm/runtime.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/step/pipeline_stage.hpp"

namespace sestina {

// The plan, place and layout of a stage on this rank.
struct StageParts {
  StagePlan plan;
  StagePlace place;
  RankLayout layout;
};

// The ranks that one works with.
struct RankGroups {
  Communicator* all = nullptr;  // the ranks of its stages
  ProcessGrid grid;
  std::unique_ptr<Communicator> replicas;  // tensor-parallel ranks with the same key and value heads
  std::unique_ptr<Communicator> pipeline;  // ranks with the same shards and samples, by their stages
  std::unique_ptr<Communicator> experts;   // data-parallel ranks that hold all experts together
  std::unique_ptr<Communicator> holders;   // data-parallel ranks that hold the same experts
};

// The parts that the stages of one rank are made from. All that they refer to must outlive the stages.
struct RankParts {
  const PlanInput& input;
  const PipelineOptions& pipe;  // that of this rank
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
// computes at older ones, to show how the delay changes their direction.
class FreshGradients {
 public:
  virtual ~FreshGradients() = default;
  // Called between updates: computes the gradients of the next one, whose micro-batches, from number `first` on, have
  // their tokens. Gradients of the stages are overwritten.
  virtual void compute(std::int64_t first, int micros, double gradient_scale) = 0;
  // Returns the cosine of a stage's complete gradients with those of the last compute(). Fences.
  virtual double cosine(std::size_t stage) = 0;
};

// The numbers of each tensor that is owned here, for an update that is sampled (core/diagnostics.hpp).
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

// What an audit asks of the stages of this rank (app/audit/audit.hpp), and the flips of a planned fault.
class BitAudit {
 public:
  virtual ~BitAudit() = default;
  // Says what the next passes are to do: leave digests of the gradients of micro-batch `digests` of this rank (none:
  // nowhere), and flip bits of one of them before, or of an activation, in micro-batch flip.micro. A micro-batch that
  // is computed again is the one meant.
  virtual void begin_passes(std::optional<int> digests, const std::optional<BitFlip>& flip) = 0;
  // Called between the updates of a synchronous pipeline: runs the passes of one more micro-batch at the newest
  // weights. Nothing goes to data-parallel ranks; gradients of the stages are overwritten. All ranks of a pipeline and
  // of a tensor-parallel group call it together.
  virtual void compute_again(const BatchView&, double gradient_scale) = 0;
  // The same, with digests of all that the passes compute here, in the order in which it depends on each other: those
  // of gradients of weights are gradients(). They are equally many on all data-parallel ranks. Far slower.
  virtual std::vector<PassDigest> replay(const BatchView&, double gradient_scale) = 0;
  // Returns the name of what a flip of a pass meets here.
  virtual std::string flipped(const BitFlip&) const = 0;
  // Returns the digests of gradients that were left last, one for each of tensors(). Fences.
  virtual std::span<const std::uint64_t> gradients() = 0;
  virtual const std::vector<std::string>& tensors() const = 0;  // names
  // Returns the weights that this rank computes with, "/weights/<name>", once all of them are there.
  virtual std::vector<StateField> weight_fields() const = 0;
  virtual std::uint64_t digest(const StateField&) = 0;       // that of its bits; fences
  virtual void flip(const StateField&, const BitFlip&) = 0;  // flips bits of one word; fences
};

class StageMaker {
 public:
  virtual ~StageMaker() = default;
  virtual std::string space() const = 0;   // name of the execution space
  virtual MemorySpace memory() const = 0;  // the memory that the stages compute in
  virtual std::vector<std::unique_ptr<ForwardStage>> make_forward(const RankParts&) const = 0;
  virtual std::vector<std::unique_ptr<PipelineStage>> make_training(const RankParts&) const = 0;
  // These take stages that this maker made and that must outlive the result; fresh gradients take all stages of a
  // pipeline, in order.
  virtual std::unique_ptr<FreshGradients> make_fresh_gradients(const PipelineStages&) const = 0;
  virtual std::unique_ptr<UpdateDiagnostics> make_diagnostics(const PipelineStages&, const Plan&) const = 0;
  virtual std::unique_ptr<BitAudit> make_audit(const PipelineStages&) const = 0;
};

}  // namespace sestina
