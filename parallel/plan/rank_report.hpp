// The report of every step that a rank sends to the others: the one description of these messages, which are written
// and read through it, and from which the plan counts their bytes. All numbers are fp64. No Kokkos.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/layout/tensor_spec.hpp"
#include "parallel/plan/coherence.hpp"

namespace sestina {

// The update of one stage of an asynchronous pipeline: the squares of its gradient; how late the gradient was; how far
// the weights had moved meanwhile and how large they are (squares); and the gradient's cosine with that at the newest
// weights.
struct StageUpdate {
  double squares = 0, delay = 0, moved = 0, weight = 0, cosine = 0;
};
// An asynchronous step on this rank: its loss, and 1 where weights that were written are not finite.
struct RankSums {
  double loss = 0, overflows = 0;
};

// A rank's votes to stop and to save, and how its saves failed (Trainer::failed_saves). The largest of all ranks
// counts.
struct Votes {
  static constexpr int polls = 2;  // polls of a synchronous step: before it, and after its gradients
  double stop = 0, save = 0, failed_saves = 0;
  void add(const Votes& other) {
    stop = std::max(stop, other.stop);
    save = std::max(save, other.save);
    failed_saves = std::max(failed_saves, other.failed_saves);
  }
};

enum class Phase { data, forward_backward, reduce, optimizer, refresh, gather, count };

using PhaseSeconds = std::array<double, static_cast<std::size_t>(Phase::count) + 1>;  // by phase and, last, of all

// The times of a step, with peak memory, ages of preconditioners and energy.
struct RankStep {
  PhaseSeconds seconds{};
  double memory_peak_bytes = 0, preconditioner_age = 0;  // the age of the oldest
  double preconditioner_ages = 0, preconditioners = 0;   // sum of ages, and how many there are
  double energy = 0;                               // joules of the node, from one rank of each; NaN: not known there
  double refresh_copies = 0, refresh_workers = 0;  // seconds, RefreshSeconds
  double refreshed_sides = 0, basis_drift = -1;    // RefreshDrift
  double package = 0, memory = 0, device = 0;      // of the energy, the joules of each domain, in the same way
  double processor = 0;                            // user and system seconds of all threads of the rank
  // Makes this the step of all ranks: the times of the rank that took longest (so that its phases add up to no more
  // than the step; the first of equals), the largest memory, age and drift, all ages, preconditioners, joules, seconds
  // of workers and processors, and refreshed sides.
  void add(const RankStep& other) {
    if (other.seconds.back() > seconds.back()) {
      seconds = other.seconds;
      refresh_copies = other.refresh_copies;
    }
    memory_peak_bytes = std::max(memory_peak_bytes, other.memory_peak_bytes);
    preconditioner_age = std::max(preconditioner_age, other.preconditioner_age);
    preconditioner_ages += other.preconditioner_ages;
    preconditioners += other.preconditioners;
    energy += other.energy;
    package += other.package;
    memory += other.memory;
    device += other.device;
    processor += other.processor;
    refresh_workers += other.refresh_workers;
    refreshed_sides += other.refreshed_sides;
    basis_drift = std::max(basis_drift, other.basis_drift);
  }
};
// The ages of the preconditioners of one pipeline stage.
struct StageAges {
  double max = 0, sum = 0, count = 0;
  void add(const StageAges& other) {
    max = std::max(max, other.max);
    sum += other.sum;
    count += other.count;
  }
};

// The bytes that this rank sent to make drifting replicas equal, and how far they were apart; -1: none were made equal.
struct ReplicaReport {
  double bytes = 0, drift = -1;
  void add(const ReplicaReport& other) {
    bytes += other.bytes;
    drift = std::max(drift, other.drift);
  }
};

// The largest attention logit of the update on this rank's stages, where it is known (optimizer.qk_clip).
struct ScoreReport {
  double largest = -std::numeric_limits<double>::infinity();
  void add(const ScoreReport& other) { largest = std::max(largest, other.largest); }
};

// The largest load of an expert in the update, over the mean of its layer, and that layer (LargestLoad).
struct LoadReport {
  double over_mean = 0, layer = -1;
  LargestLoad largest() const { return {over_mean, static_cast<int>(layer)}; }
  void add(const LoadReport& other) {
    LargestLoad both = largest();
    both.add(other.largest());
    *this = {both.over_mean, static_cast<double>(both.layer)};
  }
};

// State that lies elsewhere between its uses: the bytes that this rank read and wrote for the step, the times that
// somebody waited for a block, and the seconds that the step waited so.
struct TierReport {
  double bytes_read = 0, bytes_written = 0, waits = 0, wait_s = 0;
  void add(const TierReport& other) {
    bytes_read += other.bytes_read;
    bytes_written += other.bytes_written;
    waits += other.waits;
    wait_s = std::max(wait_s, other.wait_s);
  }
};

// The parts of a report that a message has.
struct ReportParts {
  bool sums = false, votes = false, times = false, replicas = false, scores = false, tiers = false, loads = false;
};

struct RankReport {
  explicit RankReport(int pp = 1) : stages(static_cast<std::size_t>(pp)), ages(pp > 1 ? stages.size() : 0) {}
  std::vector<StageUpdate> stages;  // sums: by stage, those of other ranks 0
  RankSums sums;
  Votes votes;
  RankStep step;                // times
  std::vector<StageAges> ages;  // times: by stage; empty without a pipeline
  ReplicaReport replicas;
  ScoreReport scores;
  TierReport tiers;
  LoadReport loads;

  void clear() {
    std::fill(stages.begin(), stages.end(), StageUpdate());
    sums = {};
    votes = {};
    step = {};
    std::fill(ages.begin(), ages.end(), StageAges());
    replicas = {};
    scores = {};
    tiers = {};
    loads = {};
  }
  // Adds another rank's report, but for the sums, which one rank of each stage speaks for.
  void add(const RankReport& other) {
    votes.add(other.votes);
    step.add(other.step);
    for (std::size_t stage = 0; stage < ages.size(); ++stage) ages[stage].add(other.ages[stage]);
    replicas.add(other.replicas);
    scores.add(other.scores);
    tiers.add(other.tiers);
    loads.add(other.loads);
  }
};

// Returns what the trainer has all ranks know of a step. In an asynchronous pipeline no rank waits: all of it travels
// in one message while later steps are under way. Otherwise votes are polls, and where replicas drift the numbers on
// that follow in a message of their own.
inline ReportParts told_parts(const ParallelOptions& parallel, const OptimizerOptions& optimizer,
                              const ModelConfig& model) {
  const bool async = parallel.is_async();
  return {.sums = async,
          .votes = async,
          .times = true,
          .replicas = replicas_drift(parallel, optimizer),
          .scores = optimizer.qk_clip > 0,
          .tiers = optimizer.pages_any(MemorySpace::device),
          .loads = model.has_experts()};
}

// Calls visit(first number, how many) for each piece of these parts, in the order in which the pieces travel.
template <class Report, class Visit>
void for_numbers(Report& report, const ReportParts& parts, const Visit& visit) {
  const auto piece = [&visit](auto& of) {
    using Piece = std::remove_cvref_t<decltype(of)>;
    static_assert(std::is_trivially_copyable_v<Piece> && alignof(Piece) == alignof(double));
    using Number = std::conditional_t<std::is_const_v<Report>, const double, double>;
    visit(reinterpret_cast<Number*>(&of), sizeof of / sizeof(double));
  };
  if (parts.sums) {
    for (auto& stage : report.stages) piece(stage);
    piece(report.sums);
  }
  if (parts.votes) piece(report.votes);
  if (parts.times) {
    piece(report.step);
    for (auto& ages : report.ages) piece(ages);
  }
  if (parts.replicas) piece(report.replicas);
  if (parts.scores) piece(report.scores);
  if (parts.tiers) piece(report.tiers);
  if (parts.loads) piece(report.loads);
}

inline std::size_t count_numbers(const RankReport& report, const ReportParts& parts) {
  std::size_t numbers = 0;
  for_numbers(report, parts, [&](const double*, std::size_t n) { numbers += n; });
  return numbers;
}
inline void write_numbers(const RankReport& report, const ReportParts& parts, double* to) {
  for_numbers(report, parts, [&](const double* from, std::size_t n) { to = std::copy_n(from, n, to); });
}
inline void read_numbers(RankReport& report, const ReportParts& parts, const double* from) {
  for_numbers(report, parts, [&](double* to, std::size_t n) {
    std::copy_n(from, n, to);
    from += n;
  });
}

}  // namespace sestina
