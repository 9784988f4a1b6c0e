// How an executor is built: groups, links and stages of this rank from the plan.
#include "parallel/step/executor.hpp"

#include "core/layout/weight_form.hpp"
#include "core/optimizer/refresh/refresh_workers.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/traced_communicator.hpp"
#include "parallel/plan/make_plan.hpp"

namespace sestina {
namespace {

// Forward passes alone: every rank keeps the weights that it computes with, and nothing is sent after an update.
PlanInput without_owners(PlanInput input, int ranks) {
  input.pipeline_ranks = ranks / (input.parallel.dp * input.parallel.tp);
  input.parallel.dp = 1;
  input.parallel.tp_update = ParallelOptions::TpUpdate::blockwise;
  input.parallel.schedule = ParallelOptions::Schedule::one_f_one_b;
  return input;
}

}  // namespace

template <class Exec, class T>
Executor<Exec, T>::Executor(const Exec& exec, const Plan& plan, Communicator& world, Trace* trace)
    : exec_(exec), plan_(plan), trace_(trace), world_(world) {
  make_groups(world, plan.dp);
  share_ = batch_share(plan.input, groups_.grid.dp_rank);
  options_ = pass_options(plan.input);
  options_.micro_batch = share_.micro_batch;
  options_.micros = share_.count;
  pipe_ = plan.pipe;
  pipe_.micros = std::max(share_.count, 1);
  build(true);
}

template <class Exec, class T>
Executor<Exec, T>::Executor(const Exec& exec, const PlanInput& input, const PassOptions& options, Communicator& world)
    : exec_(exec), plan_(make_plan(without_owners(input, world.size()))), world_(world), options_(options) {
  make_groups(world, input.parallel.dp);
  share_ = batch_share(input, groups_.grid.dp_rank);
  pipe_ = plan_.pipe;
  build(false);
}

template <class Exec, class T>
Executor<Exec, T>::~Executor() = default;

template <class Exec, class T>
void Executor<Exec, T>::build(bool training) {
  exchange_ = std::make_unique<StepExchange>(world_, plan_);
  updates_in_passes_ = exchange_->lag() > 0;
  scale_ = 1.0 / (static_cast<double>(plan_.input.train.global_batch) * options_.sequence);
  schedule_ = pipe_.micros == plan_.pipe.micros ? plan_.schedule : make_schedule(pipe_);
  part_ = model_part(plan_.input.model, plan_.tp, groups_.grid.tp_rank, plan_.input.parallel.sequence_parallel);
  make_links();
  const OptimizerOptions& optimizer = plan_.input.optimizer;
  if (training && optimizer.refresh_workers() > 0)
    groups_.workers = std::make_shared<RefreshWorkers>(worker_options(optimizer.refresh), plan_.input.deterministic);
  first_tensor_.push_back(0);
  run_of_stage_.resize(at(plan_.pp));
  for (int stage = 0; stage < plan_.pp; ++stage) {
    first_tensor_.push_back(first_tensor_.back() + plan_.stages[at(stage)].specs.size());
    if (pipe_.rank_of(stage) != pipeline_->rank()) continue;
    run_of_stage_[at(stage)] = runs_.size();
    make_stage(stage, training);
  }
  if (training && compares_gradients(plan_.input, pipe_, schedule_))
    fresh_ = std::make_unique<FreshGradients<Exec, T>>(exec_, runs_);
  cosines_.resize(runs_.size());
  losses_.resize(at(share_.all));
  whole_.resize(first_tensor_.back() + 1 + losses_.size());
  const int lowest = runs_.front()->place().number;
  tokens_ = std::make_unique<SlotPool<TokenSlot<Exec>>>(training ? schedule_.slots[at(lowest)] : 1, [&] {
    return TokenSlot<Exec>(options_.micro_batch, options_.sequence, options_.micros);
  });
  evaluation_tokens_ = std::make_unique<TokenSlot<Exec>>(options_.micro_batch, options_.sequence, 1);
}

// Ranks are numbered tensor-parallel first, then data-parallel, then by pipeline rank.
template <class Exec, class T>
void Executor<Exec, T>::make_groups(Communicator& world, int dp) {
  const ParallelOptions& parallel = plan_.input.parallel;
  const int in_stage = dp * parallel.tp;
  pipeline_ranks_ = plan_.pipe.ranks;
  SESTINA_REQUIRE(world.size() == in_stage * pipeline_ranks_ && parallel.pp % pipeline_ranks_ == 0,
                  "{} ranks for {} x {} x {}, planned for {}", world.size(), dp, parallel.tp, parallel.pp,
                  in_stage * pipeline_ranks_);
  pipeline_ = make_lone_communicator();
  if (pipeline_ranks_ > 1) {
    stage_world_ = world.split(world.rank() / in_stage, world.rank());
    pipeline_ = world.split(world.rank() % in_stage, world.rank());
    if (!is_host<Exec>) pipeline_ = on_device(std::move(pipeline_));
    if (trace_) pipeline_ = traced(std::move(pipeline_), *trace_, "pipeline group");
  }
  Communicator& ranks = stage_world_ ? *stage_world_ : world;
  groups_.all = &ranks;
  groups_.grid = make_grid(ranks, dp, parallel.tp, parallel.node_size, !is_host<Exec>);
  if (trace_ && ranks.size() > 1) {
    groups_.grid.tp_group = traced(std::move(groups_.grid.tp_group), *trace_, "tensor-parallel group");
    groups_.grid.dp_group = traced(std::move(groups_.grid.dp_group), *trace_, "data-parallel group");
  }
  groups_.tensor = std::make_unique<TensorGroup<Exec>>(*groups_.grid.tp_group);
  const ModelPart part = model_part(plan_.input.model, parallel.tp, groups_.grid.tp_rank, parallel.sequence_parallel);
  const int tp_rank = groups_.grid.tp_rank;
  groups_.replica_group = groups_.grid.tp_group->split(tp_rank / part.key_value_holders(), tp_rank);
  groups_.replicas = std::make_unique<TensorGroup<Exec>>(*groups_.replica_group);
}

template <class Exec, class T>
void Executor<Exec, T>::make_links() {
  const auto tokens = static_cast<std::int64_t>(options_.micro_batch) * options_.sequence;
  for (int s = 0; s + 1 < pipe_.stages; ++s)
    links_.push_back(std::make_unique<Link<Exec, T>>(
        exec_, *pipeline_,
        LinkOptions{pipe_.rank_of(s), pipe_.rank_of(s + 1), static_cast<std::size_t>(part_.own_rows(tokens)),
                    static_cast<std::size_t>(part_.config.hidden_size), schedule_.activations[at(s)],
                    schedule_.gradients[at(s)]}));
  if (!plan_.input.model.tie_word_embeddings || pipe_.stages == 1) return;
  const int first = pipe_.rank_of(0), last = pipe_.rank_of(pipe_.stages - 1);
  const auto rows = static_cast<std::size_t>(part_.config.vocab_size);
  const auto cols = static_cast<std::size_t>(part_.config.hidden_size);
  tie_ = std::make_unique<Tie<Exec, T>>(Tie<Exec, T>{
      Channel<Exec, T>(*pipeline_, "tied weights", {first, last, rows, cols, schedule_.tied_weights}),
      Channel<Exec, Acc<T>>(*pipeline_, "tied gradients", {last, first, rows, cols, schedule_.tied_gradients})});
}

template <class Exec, class T>
void Executor<Exec, T>::make_stage(int number, bool training) {
  const ProcessGrid& grid = groups_.grid;
  StagePlan plan = plan_.stages[at(number)];
  lay_out_buckets(plan, plan_.input, grid.tp_rank);
  // One rank by itself keeps the gradients in the order of the tensors.
  const RankLayout layout =
      plan_.input.parallel.dp * plan_.input.parallel.tp == 1
          ? lone_layout(plan.specs)
          : shard_layout(plan, gradient_buckets(plan), plan_.input, training ? grid.dp_rank : 0, grid.tp_rank);
  StageLinks<Exec, T> links;
  if (number > 0) links.in = links_[at(number - 1)].get();
  if (number + 1 < pipe_.stages) links.out = links_[at(number)].get();
  if (links.in == nullptr || links.out == nullptr) links.tie = tie_.get();
  StagePlace place =
      stage_place(pipe_, schedule_, plan_.input.parallel, updates_between_merges(plan_.input.model.linear), number);
  if (!training) place.slots = 1;
  runs_.push_back(std::make_unique<StageRun<Exec, T>>(exec_, plan_.input, plan, place, part_, options_, layout,
                                                      groups_.tensor.get(), training ? &groups_ : nullptr, links,
                                                      trace_));
}

#define SESTINA_EXECUTOR(Exec, T) template class Executor<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_EXECUTOR)

}  // namespace sestina
