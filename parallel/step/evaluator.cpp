#include "parallel/step/evaluator.hpp"

#include "core/layout/weight_form.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/traced_communicator.hpp"
#include "parallel/plan/shard_layout.hpp"

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
Evaluator<Exec, T>::Evaluator(const Exec& exec, const PlanInput& input, const PassOptions& options, Communicator& world)
    : exec_(exec), plan_(make_plan(without_owners(input, world.size()))), world_(world), options_(options) {
  make_groups(input.parallel.dp);
  share_ = batch_share(input, groups_.grid.dp_rank);
  make_links(plan_.pipe.micros);
  for (const int stage : own_stages()) {
    StageParts<Exec, T> parts = parts_of(stage);
    parts.place.slots = 1;
    stages_.push_back(std::make_unique<StageForward<Exec, T>>(exec_, parts, part_, options_, groups_.tensor.get()));
  }
}

template <class Exec, class T>
Evaluator<Exec, T>::Evaluator(const Exec& exec, const Plan& plan, Communicator& world, Trace* trace)
    : exec_(exec), plan_(plan), trace_(trace), world_(world), options_(pass_options(plan.input)) {
  make_groups(plan.dp);
  share_ = batch_share(plan.input, groups_.grid.dp_rank);
  options_.micro_batch = share_.micro_batch;
  options_.micros = share_.count;
  make_links(std::max(share_.count, 1));
}

template <class Exec, class T>
Evaluator<Exec, T>::~Evaluator() = default;

template <class Exec, class T>
std::vector<int> Evaluator<Exec, T>::own_stages() const {
  std::vector<int> own;
  for (int stage = 0; stage < plan_.pp; ++stage)
    if (pipe_.rank_of(stage) == pipeline_->rank()) own.push_back(stage);
  return own;
}

template <class Exec, class T>
StageParts<Exec, T> Evaluator<Exec, T>::parts_of(int number) const {
  const ProcessGrid& grid = groups_.grid;
  StageParts<Exec, T> parts;
  parts.plan = plan_.stages[at(number)];
  lay_out_buckets(parts.plan, plan_.input, grid.tp_rank);
  // One rank by itself keeps the gradients in the order of the tensors.
  parts.layout = plan_.input.parallel.dp * plan_.input.parallel.tp == 1
                     ? lone_layout(parts.plan.specs)
                     : shard_layout(parts.plan, gradient_buckets(parts.plan), plan_.input,
                                    plan_.dp > 1 ? grid.dp_rank : 0, grid.tp_rank);
  if (number > 0) parts.links.in = links_[at(number - 1)].get();
  if (number + 1 < pipe_.stages) parts.links.out = links_[at(number)].get();
  if (parts.links.in == nullptr || parts.links.out == nullptr) parts.links.tie = tie_.get();
  parts.place =
      stage_place(pipe_, schedule_, plan_.input.parallel, updates_between_merges(plan_.input.model.linear), number);
  return parts;
}

// Ranks are numbered tensor-parallel first, then data-parallel, then by pipeline rank.
template <class Exec, class T>
void Evaluator<Exec, T>::make_groups(int dp) {
  const ParallelOptions& parallel = plan_.input.parallel;
  const int in_stage = dp * parallel.tp;
  const int pipeline_ranks = plan_.pipe.ranks;
  SESTINA_REQUIRE(world_.size() == in_stage * pipeline_ranks && parallel.pp % pipeline_ranks == 0,
                  "{} ranks for {} x {} x {}, planned for {}", world_.size(), dp, parallel.tp, parallel.pp,
                  in_stage * pipeline_ranks);
  pipeline_ = make_lone_communicator();
  if (pipeline_ranks > 1) {
    stage_world_ = world_.split(world_.rank() / in_stage, world_.rank());
    pipeline_ = world_.split(world_.rank() % in_stage, world_.rank());
    if (!is_host<Exec>) pipeline_ = on_device(std::move(pipeline_));
    if (trace_) pipeline_ = traced(std::move(pipeline_), *trace_, "pipeline group");
  }
  Communicator& ranks = stage_world_ ? *stage_world_ : world_;
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
void Evaluator<Exec, T>::make_links(int micros) {
  pipe_ = plan_.pipe;
  pipe_.micros = micros;
  schedule_ = pipe_.micros == plan_.pipe.micros ? plan_.schedule : make_schedule(pipe_);
  part_ = model_part(plan_.input.model, plan_.tp, groups_.grid.tp_rank, plan_.input.parallel.sequence_parallel);
  tokens_ = std::make_unique<TokenSlot<Exec>>(options_.micro_batch, options_.sequence, 1);
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
double Evaluator<Exec, T>::loss(const BatchView& batch) {
  tokens_->load(exec_, batch);
  double sum = 0;
  for (auto& stage : stages_) sum += stage->evaluate(*tokens_);
  if (!has_last_stage()) exec_.fence("evaluation");  // tokens to come are copied from where these were
  return sum;
}

template <class Exec, class T>
void Evaluator<Exec, T>::token_losses(Acc<T>* host) {
  const Vector<Acc<T>, Exec> losses = stages_.back()->evaluation_slot().token_loss;
  Kokkos::deep_copy(exec_, Vector<Acc<T>, Host>(host, losses.size()), losses);
  groups_.tensor->complete();
  exec_.fence("token_losses");
}

template <class Exec, class T>
void Evaluator<Exec, T>::logits(int row, float* host) {
  StageForward<Exec, T>& last = *stages_.back();
  const auto n = static_cast<std::size_t>(last.stage().model().config().vocab_size);
  const Kokkos::View<T*, typename Exec::memory_space> row_logits("sestina::row_logits", n);
  const Kokkos::View<float*, typename Exec::memory_space> wide("sestina::row_logits_f32", n);
  last.stage().model().logits(last.stage().weights(), last.evaluation_slot(), row,
                              Matrix<T, Exec>(row_logits.data(), 1, n));
  convert<Exec, T, float>(exec_, row_logits, wide);
  Kokkos::deep_copy(exec_, Vector<float, Host>(host, n), wide);
  groups_.tensor->complete();
  exec_.fence();
}

template <class Exec, class T>
std::vector<StateField> Evaluator<Exec, T>::model_fields() const {
  std::vector<StateField> fields;
  for (const auto& stage : stages_)
    for (StateField& field : stage->model_fields()) fields.push_back(std::move(field));
  return fields;
}

template <class Exec, class T>
void Evaluator<Exec, T>::weights_changed() {
  for (auto& stage : stages_) stage->weights_changed();
}

#define SESTINA_EVALUATOR(Exec, T) template class Evaluator<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_EVALUATOR)

}  // namespace sestina
