#include "parallel/stage/shared_parts.hpp"

namespace sestina {
namespace {

template <class Exec, class T>
std::unique_ptr<Tie<Exec, T>> make_tie(const RankParts& parts) {
  const PipelineOptions& pipe = parts.pipe;
  if (!parts.input.model.tie_word_embeddings || pipe.stages == 1) return nullptr;
  Communicator& pipeline = *parts.groups.pipeline;
  const int first = pipe.rank_of(0), last = pipe.rank_of(pipe.stages - 1);
  const auto rows = static_cast<std::size_t>(parts.part.config.vocab_size);
  const auto cols = static_cast<std::size_t>(parts.part.config.hidden_size);
  return std::make_unique<Tie<Exec, T>>(Tie<Exec, T>{
      Channel<Exec, T>(pipeline, "tied weights", {first, last, rows, cols, parts.schedule.tied_weights}),
      Channel<Exec, Acc<T>>(pipeline, "tied gradients", {last, first, rows, cols, parts.schedule.tied_gradients})});
}

}  // namespace

template <class Exec, class T>
SharedParts<Exec, T>::SharedParts(const Exec& exec, const RankParts& parts)
    : groups(parts.groups), evaluated(parts.passes.micro_batch, parts.passes.sequence, 1) {
  const PipelineOptions& pipe = parts.pipe;
  const auto tokens = static_cast<std::int64_t>(parts.passes.micro_batch) * parts.passes.sequence;
  for (int s = 0; s + 1 < pipe.stages; ++s)
    links.push_back(std::make_unique<Link<Exec, T>>(
        exec, *parts.groups.pipeline,
        LinkOptions{pipe.rank_of(s), pipe.rank_of(s + 1), static_cast<std::size_t>(parts.part.own_rows(tokens)),
                    static_cast<std::size_t>(parts.part.config.hidden_size), parts.schedule.activations[at(s)],
                    parts.schedule.gradients[at(s)]}));
  tie = make_tie<Exec, T>(parts);
}

#define SESTINA_SHARED_PARTS(Exec, T) template struct SharedParts<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_SHARED_PARTS)

}  // namespace sestina
