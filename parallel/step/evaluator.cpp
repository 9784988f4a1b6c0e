#include "parallel/step/evaluator.hpp"

#include "core/layout/weight_form.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/trace.hpp"
#include "parallel/plan/expert_layout.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

// Returns the input for forward passes alone: every rank keeps the weights that it computes with, and nothing is sent
// after an update.
PlanInput without_owners(PlanInput input, int ranks) {
  input.pipeline_ranks = ranks / (input.parallel.dp * input.parallel.tp);
  input.parallel.dp = input.parallel.ep = 1;
  input.parallel.partition = ParallelOptions::Partition::optimal;
  input.parallel.shard = ParallelOptions::Shard::state;
  input.parallel.tp_update = ParallelOptions::TpUpdate::blockwise;
  input.parallel.schedule = ParallelOptions::Schedule::one_f_one_b;
  return input;
}

}  // namespace

Evaluator::Evaluator(const StageMaker& maker, const PlanInput& input, const PassOptions& options, Communicator& world)
    : plan_(make_plan(without_owners(input, world.size()))), world_(world), options_(options) {
  make_groups(input.parallel.dp, maker.memory() == MemorySpace::device);
  share_ = batch_share(input, groups_.grid.dp_rank);
  make_schedule_of(plan_.pipe.micros);
  RankParts parts = rank_parts();
  for (StageParts& stage : parts.stages) stage.place.slots = 1;
  stages_ = maker.make_forward(parts);
}

Evaluator::Evaluator(const StageMaker& maker, const Plan& plan, Communicator& world, Trace* trace)
    : plan_(plan), trace_(trace), world_(world), options_(pass_options(plan.input)) {
  make_groups(plan.dp, maker.memory() == MemorySpace::device);
  share_ = batch_share(plan.input, groups_.grid.dp_rank);
  options_.micro_batch = share_.micro_batch;
  options_.micros = share_.count;
  make_schedule_of(std::max(share_.count, 1));
}

RankParts Evaluator::rank_parts() {
  RankParts parts{plan_.input, pipe_, schedule_, part_, options_, share_, groups_, trace_, {}};
  for (int stage = 0; stage < plan_.pp; ++stage)
    if (pipe_.rank_of(stage) == groups_.pipeline->rank()) parts.stages.push_back(parts_of(stage));
  return parts;
}

StageParts Evaluator::parts_of(int number) const {
  const ProcessGrid& grid = groups_.grid;
  StageParts parts;
  parts.plan = plan_.stages[at(number)];
  const int dp_rank = plan_.dp > 1 ? grid.dp_rank : 0;
  lay_out_buckets(parts.plan, plan_.input, grid.tp_rank, dp_rank);
  parts.layout =
      shard_layout(parts.plan, gradient_buckets(parts.plan, plan_.input.parallel), plan_.input, dp_rank, grid.tp_rank);
  parts.place =
      stage_place(pipe_, schedule_, plan_.input.parallel, updates_between_merges(plan_.input.model.linear), number);
  return parts;
}

// Ranks are numbered tensor-parallel first, then data-parallel, then by pipeline rank.
void Evaluator::make_groups(int dp, bool device) {
  const ParallelOptions& parallel = plan_.input.parallel;
  const int in_stage = dp * parallel.tp;
  const int pipeline_ranks = plan_.pipe.ranks;
  SESTINA_REQUIRE(world_.size() == in_stage * pipeline_ranks && parallel.pp % pipeline_ranks == 0,
                  "{} ranks for {} x {} x {}, planned for {}", world_.size(), dp, parallel.tp, parallel.pp,
                  in_stage * pipeline_ranks);
  std::unique_ptr<Communicator>& pipeline = groups_.pipeline;
  pipeline = make_lone_communicator();
  if (pipeline_ranks > 1) {
    stage_world_ = world_.split(world_.rank() / in_stage, world_.rank());
    pipeline = world_.split(world_.rank() % in_stage, world_.rank());
    if (device) pipeline = on_device(std::move(pipeline));
    if (trace_) pipeline = traced(std::move(pipeline), *trace_, "pipeline group");
  }
  Communicator& ranks = stage_world_ ? *stage_world_ : world_;
  groups_.all = &ranks;
  groups_.grid = make_grid(ranks, dp, parallel.tp, parallel.node_size, device);
  if (trace_ && ranks.size() > 1) {
    groups_.grid.tp_group = traced(std::move(groups_.grid.tp_group), *trace_, "tensor-parallel group");
    groups_.grid.dp_group = traced(std::move(groups_.grid.dp_group), *trace_, "data-parallel group");
  }
  if (plan_.input.model.has_experts() && parallel.tp > 1 && !device)  // each of them chooses the experts of all tokens
    require_one_instruction_set(world_, parallel.tp, "parallel.tp of a mixture of experts", "1 on such ranks");
  const int tp_rank = groups_.grid.tp_rank;
  part_ = part_of_rank(plan_.input, tp_rank);
  groups_.replicas = groups_.grid.tp_group->split(tp_rank / part_.key_value_holders(), tp_rank);
  make_expert_groups(device);
}

void Evaluator::make_expert_groups(bool device) {
  groups_.experts = make_lone_communicator();
  groups_.holders = make_lone_communicator();
  if (plan_.input.parallel.ep == 1) return;
  const int rank = groups_.grid.dp_rank, ep = plan_.input.parallel.ep;
  set_experts(part_, plan_.input.parallel, rank);
  const auto group = [&](int color, const char* name) {
    std::unique_ptr<Communicator> part =
        groups_.all->split(color * groups_.grid.tp + groups_.grid.tp_rank, groups_.all->rank());
    if (device) part = on_device(std::move(part));
    return trace_ ? traced(std::move(part), *trace_, name) : std::move(part);
  };
  groups_.experts = group(rank / ep, "expert-parallel group");
  groups_.holders = group(rank % ep, "ranks with the same experts");
}

void Evaluator::make_schedule_of(int micros) {
  pipe_ = plan_.pipe;
  pipe_.micros = micros;
  schedule_ = pipe_.micros == plan_.pipe.micros ? plan_.schedule : make_schedule(pipe_);
}

double Evaluator::loss(const BatchView& batch) {
  stages_.front()->load(ForwardStage::evaluation, batch);
  double sum = 0;
  for (auto& stage : stages_) sum += stage->evaluate();
  return sum;
}

std::vector<StateField> Evaluator::model_fields() const {
  std::vector<StateField> fields;
  for (const auto& stage : stages_)
    for (StateField& field : stage->model_fields()) fields.push_back(std::move(field));
  return fields;
}

void Evaluator::weights_changed() {
  for (auto& stage : stages_) stage->weights_changed();
}

}  // namespace sestina
