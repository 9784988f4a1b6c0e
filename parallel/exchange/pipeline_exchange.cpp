#include "parallel/exchange/pipeline_exchange.hpp"

#include "core/layout/rank_layout.hpp"

namespace sestina {

std::size_t ChannelOptions::elements() const {
  return static_cast<std::size_t>(places + 1) * aligned_elements(rows * cols);
}

std::vector<LinkOptions> stage_links(const PlanInput& input, const PipelineOptions& pipe,
                                     const PipelineSchedule& schedule, std::int64_t rows) {
  const auto n = static_cast<std::size_t>(rows), hidden = static_cast<std::size_t>(input.model.hidden_size);
  std::vector<LinkOptions> links;
  for (int stage = 0; stage + 1 < pipe.stages; ++stage) {
    const int lower = pipe.rank_of(stage), upper = pipe.rank_of(stage + 1);
    links.push_back({{lower, upper, n, hidden, schedule.activations[at(stage)]},
                     {upper, lower, n, hidden, schedule.gradients[at(stage)]}});
  }
  return links;
}

std::optional<TieOptions> tied_ends(const PlanInput& input, const PipelineOptions& pipe,
                                    const PipelineSchedule& schedule, std::int64_t vocabulary) {
  if (!input.model.tie_word_embeddings || pipe.stages == 1) return std::nullopt;
  const int first = pipe.rank_of(0), last = pipe.rank_of(pipe.stages - 1);
  const auto rows = static_cast<std::size_t>(vocabulary), cols = static_cast<std::size_t>(input.model.hidden_size);
  return TieOptions{{first, last, rows, cols, schedule.tied_weights},
                    {last, first, rows, cols, schedule.tied_gradients}};
}

std::size_t memory_of_channels(const Plan& plan, const ModelPart& part, int stage) {
  const PlanInput& input = plan.input;
  const PipelineOptions& pipe = plan.pipe;
  const StorageWidth width = width_of(input);
  const std::int64_t tokens = std::int64_t{largest_share(input).micro_batch} * input.sequence_length;
  std::size_t bytes = 0;
  const std::vector<LinkOptions> links = stage_links(input, pipe, plan.schedule, part.own_rows(tokens));
  const auto add = [&](const LinkOptions& link) {
    bytes += (link.activations.elements() + link.gradients.elements()) * width.compute;
  };
  if (stage + 1 < pipe.stages) add(links[at(stage)]);
  if (stage > 0 && pipe.rank_of(stage - 1) != pipe.rank_of(stage)) add(links[at(stage - 1)]);
  const int last = pipe.stages - 1;
  const auto tie = tied_ends(input, pipe, plan.schedule, part.config.vocab_size);
  const bool once = pipe.rank_of(0) == pipe.rank_of(last);
  if (tie && (stage == 0 || (stage == last && !once)))
    bytes += tie->weights.elements() * width.compute + tie->gradients.elements() * width.accumulate;
  return bytes;
}

// Sizes are those of a rank's rows in the mean, and of tensor-parallel rank 0's part of the vocabulary.
void add_pipeline(Traffic& traffic, const Plan& plan, int number) {
  const PlanInput& input = plan.input;
  if (input.parallel.pp == 1) return;
  const BatchShare batch = largest_share(input);
  const bool first = number == 0, last = number + 1 == plan.pipe.stages;
  const std::int64_t tokens = std::int64_t{batch.micro_batch} * input.sequence_length;
  const std::int64_t sends = std::int64_t{batch.count} * (first || last ? 1 : 2);
  const std::int64_t stream = tokens * input.model.hidden_size * sent_width(input);
  traffic.add("send", "pp", "activations", sends, sends * stream / input.parallel.tp);
  const ModelPart part = part_of_rank(input, 0);
  const auto tie = tied_ends(input, plan.pipe, plan.schedule, part.config.vocab_size);
  if (!tie) return;
  const auto table = static_cast<std::int64_t>(tie->weights.rows * tie->weights.cols);
  if (first) traffic.add("send", "pp", "tied weights", 1, table * sent_width(input));
  if (last) traffic.add("send", "pp", "tied gradients", batch.count, batch.count * table * f32_bytes);
}

}  // namespace sestina
