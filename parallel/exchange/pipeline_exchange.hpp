// The messages between the stages of a pipeline: the channels by which parallel/stage/link.hpp allocates, their memory,
// and what a step sends. No Kokkos.
#pragma once
#include <cstddef>
#include <optional>

#include "parallel/exchange/traffic.hpp"

namespace sestina {

// One direction: matrices (rows, cols) that take turns in places (parallel/plan/pipeline_schedule.hpp).
struct ChannelOptions {
  int from = 0, to = 0;  // pipeline ranks
  std::size_t rows = 0, cols = 0;
  int places = 1;
  // Returns the elements that each side holds: those of the places, and of one more for evaluation.
  std::size_t elements() const;
  bool has_side_on(int rank) const { return rank == from || rank == to; }
};

// The boundary between a stage and the next one: activations go up, gradients come back.
struct LinkOptions {
  ChannelOptions activations, gradients;
};
// The links between all stages, by boundary. rows: those of the residual stream on this rank in one micro-batch.
std::vector<LinkOptions> stage_links(const PlanInput&, const PipelineOptions&, const PipelineSchedule&,
                                     std::int64_t rows);

// A tied embedding belongs to the first stage: each minibatch's version of it goes to the last one, the head's part of
// the gradient of each micro-batch comes back.
struct TieOptions {
  ChannelOptions weights, gradients;
};
// vocabulary: rows of the embedding on this rank. None where nothing is tied, or there is one stage.
std::optional<TieOptions> tied_ends(const PlanInput&, const PipelineOptions&, const PipelineSchedule&,
                                    std::int64_t vocabulary);

// Returns the bytes that the channels at a stage take on its rank; those between stages of one rank count once, with
// the lower stage.
std::size_t memory_of_channels(const Plan&, const ModelPart&, int stage);

void add_pipeline(Traffic&, const Plan&, int stage);

}  // namespace sestina
