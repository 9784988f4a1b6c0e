#include "parallel/exchange/update_exchange.hpp"

#include <algorithm>

#include "core/layout/model_size.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "parallel/comm/group_staging.hpp"
#include "parallel/plan/coherence.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

// What an update of a share sums over the ranks that update its matrix together: norm and moments in fp64, and in each
// of so many steps a Gram matrix of the whole short side, whose rows of the polynomial are gathered (ShardSums).
struct SharedUpdate {
  std::int64_t moments = 0, steps = 0, gram = 0;  // elements of one sum
  std::int64_t calls() const { return 1 + steps + (moments > 0 ? 1 : 0); }
  std::int64_t bytes() const { return 2 * f32_bytes * (1 + moments) + steps * gram * f32_bytes; }
  std::size_t staging(int ranks, int rank) const {
    const auto largest = static_cast<std::size_t>(std::max<std::int64_t>(1, moments));
    return std::max(summed_from_others(static_cast<std::size_t>(gram), ranks, rank) * sizeof(float),
                    summed_from_others(largest, ranks, rank) * sizeof(double));
  }
};

SharedUpdate shared_update(const MatrixShare& share, const StagePlan& stage, const OptimizerOptions& optimizer) {
  const TensorSpec& whole = stage.specs[at(share.spec)];
  const std::int64_t side = std::min(whole.rows, whole.cols);
  return {shard_sums(*optimizer.matrix, whole, share_shape(share)),
          find_matrix_kind(optimizer.kind)->newton_schulz(*optimizer.matrix), side * side};
}

}  // namespace

std::size_t memory_of_places(const RoundPlaces& places, StorageWidth width) {
  std::size_t bytes = 0;
  for (const std::size_t elements : places)
    bytes += elements * (width.accumulate + (width.shared() ? 0 : width.compute));
  return bytes;
}

RoundPlaces home_places(const StagePlan& stage, const PlanInput& input, int dp_rank, int tp_rank) {
  RoundPlaces largest = {};
  std::size_t number = 0;
  for (const std::vector<int>& specs : homed_groups(stage, input, dp_rank)) {
    std::size_t elements = 0;
    for (const int spec : specs)
      if (is_home(stage, spec, tp_rank))
        elements += aligned_elements(static_cast<std::size_t>(stage.specs[at(spec)].elements()));
    std::size_t& place = largest[number++ % group_places];
    place = std::max(place, elements);
  }
  return largest;
}

void add_homes(Traffic& traffic, const StagePlan& stage, const PlanInput& input, int dp_rank) {
  const int tp = input.parallel.tp;
  const std::vector<std::vector<int>> groups = homed_groups(stage, input, dp_rank);
  const auto count = static_cast<std::int64_t>(groups.size());
  std::int64_t gradients = 0, updates = 0;  // bytes
  for (const std::vector<int>& group : groups)
    for (const int number : group) {
      const TensorSpec& spec = stage.specs[at(number)];
      gradients += spec.elements() * f32_bytes;
      for (int rank = 0; rank < tp; ++rank)  // a shard that several ranks hold goes to all of them
        updates += local_shape(spec, input.model, tp, rank).elements() * sent_width(input);
    }
  if (input.parallel.tp_update == ParallelOptions::TpUpdate::duplicated) {
    traffic.add("all_gather", "tp", "whole gradients", count, gradients);
  } else {
    const std::int64_t sent = times_sent(input);
    traffic.add("all_to_all", "tp", "whole gradients", count, gradients);
    traffic.add("all_to_all", "tp", "updates", sent * count, sent * updates);
  }
  if (replicas_drift(input.parallel, input.optimizer))  // a flag for each group with matrices that were made equal
    traffic.add("all_reduce", "tp", "matrices made equal", count > 0 ? 1 : 0, count * 8);
}

std::vector<std::size_t> share_rounds(const StagePlan& stage, const ParallelOptions& parallel) {
  std::vector<std::size_t> rounds;
  const auto& shares = stage.shares;
  // By rank: bytes of the open round before this matrix and with it, and the number of that round.
  struct Held {
    std::int64_t before = 0, now = 0;
    std::size_t round = 0;
    int spec = -1;
  };
  std::vector<Held> held(at(parallel.dp * parallel.tp));
  for (std::size_t begin = 0, end = 0; begin < shares.size(); begin = end) {
    bool full = rounds.empty();
    for (; end < shares.size() && shares[end].spec == shares[begin].spec; ++end) {
      Held& of = held[at(shares[end].rank)];
      if (of.round != rounds.size()) of = {.round = rounds.size()};
      if (of.spec != shares[end].spec) of.before = of.now;
      of.spec = shares[end].spec;
      of.now += shares[end].elements() * f32_bytes;
      full = full || (of.before > 0 && of.now > parallel.micro_group_bytes);
    }
    if (!full) continue;
    rounds.push_back(begin);
    for (std::size_t i = begin; i < end; ++i) {  // what they held before is of the round that ended
      Held& of = held[at(shares[i].rank)];
      if (of.round != rounds.size()) of = {.now = of.now - of.before, .round = rounds.size(), .spec = of.spec};
    }
  }
  if (!shares.empty()) rounds.push_back(shares.size());
  return rounds;
}

RoundPlaces share_places(const StagePlan& stage, const ParallelOptions& parallel, int rank) {
  RoundPlaces largest = {};
  const std::vector<std::size_t> rounds = share_rounds(stage, parallel);
  for (std::size_t round = 0; round + 1 < rounds.size(); ++round) {
    std::size_t elements = 0;
    for (std::size_t i = rounds[round]; i < rounds[round + 1]; ++i)
      if (stage.shares[i].rank == rank)
        elements += aligned_elements(static_cast<std::size_t>(stage.shares[i].elements()));
    largest[round % group_places] = std::max(largest[round % group_places], elements);
  }
  return largest;
}

std::map<int, std::size_t> share_staging(const StagePlan& stage, const PlanInput& input, int rank) {
  std::map<int, std::size_t> staging;
  for (const MatrixShare& share : stage.shares) {
    if (share.rank != rank || share.ranks == 1) continue;
    std::size_t& most = staging[share.ranks];
    most = std::max(most, shared_update(share, stage, input.optimizer).staging(share.ranks, rank % share.ranks));
  }
  return staging;
}

std::size_t memory_of_shares(const StagePlan& stage, const PlanInput& input, int rank) {
  std::size_t bytes = memory_of_places(share_places(stage, input.parallel, rank), width_of(input));
  for (const auto& [size, most] : share_staging(stage, input, rank)) bytes += most;
  return bytes;
}

void add_shares(Traffic& traffic, const StagePlan& stage, const PlanInput& input) {
  if (stage.shares.empty()) return;
  const auto rounds = static_cast<std::int64_t>(share_rounds(stage, input.parallel).size()) - 1;
  std::int64_t elements = 0;
  const std::size_t ranks = at(input.parallel.dp * input.parallel.tp);
  std::vector<std::int64_t> sums(ranks, 0), summed = sums, gathers = sums, gathered = sums;  // by rank: calls, bytes
  for (const MatrixShare& share : stage.shares) {
    elements += share.elements();
    if (share.ranks == 1) continue;
    const SharedUpdate update = shared_update(share, stage, input.optimizer);
    sums[at(share.rank)] += update.calls();
    summed[at(share.rank)] += update.bytes();
    gathers[at(share.rank)] += update.steps;
    gathered[at(share.rank)] += update.steps * update.gram * sent_width(input);
  }
  const std::int64_t sent = times_sent(input);
  traffic.add("all_to_all", "all", "gradients of shares", rounds, elements * f32_bytes);
  traffic.add("all_to_all", "all", "shares of weights", sent * rounds, sent * elements * sent_width(input));
  const auto most = [](const std::vector<std::int64_t>& of) { return *std::max_element(of.begin(), of.end()); };
  traffic.add("all_reduce", "all", "products of shares", most(sums), most(summed));
  traffic.add("all_gather", "all", "rows of polynomials", most(gathers), most(gathered));
}

}  // namespace sestina
