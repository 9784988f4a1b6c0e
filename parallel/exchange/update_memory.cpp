#include "parallel/exchange/update_memory.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/memory/device_store.hpp"
#include "core/optimizer/base/paged_bytes.hpp"
#include "core/optimizer/base/routing.hpp"
#include "core/optimizer/base/stream_scratch.hpp"
#include "core/optimizer/stream_share.hpp"
#include "parallel/plan/matrix_groups.hpp"
#include "parallel/plan/plan_cost.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

std::size_t elements_of(const TensorSpec& spec) { return static_cast<std::size_t>(spec.elements()); }

// Streams and shards of the matrices that a rank updates.
class UpdateScratch {
 public:
  UpdateScratch(const PlanInput& input, int threads, PartScratch& known)
      : input_(input), threads_(std::max(1, threads)), on_device_(threads == 0), known_(known) {}

  void add(const TensorSpec& kept) {
    for (const MatrixPart& part : matrix_parts(kept, input_.optimizer)) {
      cost_.push_back(stream_cost(static_cast<std::size_t>(part.rows), static_cast<std::size_t>(part.cols)));
      bytes_.push_back(known_.of(part));
      batches_ += known_.in_batch(part);
    }
  }
  void add_shard(const TensorSpec& whole, const TensorSpec& local) {
    shard_ = std::max(shard_, host_shard_scratch(*input_.optimizer.matrix, whole, local, !width_of(input_).shared()));
  }
  int streams() const { return cost_.empty() ? 1 : stream_count(cost_, threads_); }
  std::size_t total(int streams) const {
    const std::vector<int> stream = balance(cost_, streams);
    std::vector<std::size_t> largest(at(streams));
    for (std::size_t i = 0; i < stream.size(); ++i)
      largest[at(stream[i])] = std::max(largest[at(stream[i])], bytes_[i]);
    if (on_device_) largest.front() = std::max(largest.front(), batches_scratch(batches_));
    std::size_t sum = shard_;
    for (const std::size_t bytes : largest) sum += bytes;
    return sum;
  }

 private:
  const PlanInput& input_;
  int threads_;
  bool on_device_;
  PartScratch& known_;
  std::vector<double> cost_;
  std::vector<std::size_t> bytes_;
  std::size_t shard_ = 0, batches_ = 0;
};

// Memory of the measures of a stage's updates on a rank (core/update_meter.hpp).
class MeterMemory {
 public:
  explicit MeterMemory(const PlanInput& input) : input_(input), width_(width_of(input).accumulate) {}

  // elements: those that the rank updates.
  void add(std::size_t elements) {
    if (input_.updates_every == 0) return;
    copies_ += elements * width_;
    sums_ += 2 * sizeof(double);
    scratch_ = std::max(scratch_, host_meter_scratch(elements, 0, 0));
  }
  // kept: what the rank updates of a matrix.
  void add_matrix(const TensorSpec& kept) {
    if (input_.updates_every == 0) return;
    for (const MatrixPart& part : matrix_parts(kept, input_.optimizer))
      add_gram(static_cast<std::size_t>(std::min(part.rows, part.cols)),
               part.skew ? static_cast<std::size_t>(part.rows) : 0);
  }
  void add_shard(const TensorSpec& whole, const TensorSpec& local) {
    if (input_.updates_every > 0)
      add_gram(static_cast<std::size_t>(local.cols == whole.cols ? local.cols : local.rows), 0);
  }
  std::size_t total() const { return copies_ + sums_ + scratch_; }

 private:
  void add_gram(std::size_t side, std::size_t skew_block) {
    sums_ += 2 * sizeof(double);
    scratch_ = std::max(scratch_, host_meter_scratch(0, side, skew_block));
  }
  const PlanInput& input_;
  std::size_t width_, copies_ = 0, sums_ = 0, scratch_ = 0;
};

// Bytes of all parts of a matrix whose refreshes are jobs.
RefreshNeeds job_needs(const TensorSpec& spec, const OptimizerOptions& optimizer) {
  if (optimizer.refresh_workers() == 0) return {};
  RefreshNeeds sum;
  for (const MatrixPart& part : matrix_parts(spec, optimizer)) {
    const RefreshNeeds needs =
        refresh_needs(*optimizer.matrix, static_cast<std::size_t>(part.rows), static_cast<std::size_t>(part.cols));
    sum.scratch = std::max(sum.scratch, needs.scratch);
    sum.results += needs.results;
    sum.orders += needs.orders;
    sum.copies += needs.copies;
  }
  return sum;
}

// Bytes that streams and workers take, or what the deck allows.
std::size_t paged_in_memory(const PagedBytes& largest, int streams, const OptimizerOptions& optimizer, bool on_device) {
  const PagedAtWork work = on_device
                               ? paged_on_device(largest.update, largest.refresh)
                               : paged_at_work(largest.update, largest.refresh, streams, optimizer.refresh_workers());
  const RefreshOptions& refresh = optimizer.refresh;
  return std::max(std::max(work.updates, pieces_at_work(largest.piece)) + work.jobs,
                  static_cast<std::size_t>(on_device ? refresh.device_bytes : refresh.host_bytes));
}

// Adds state that lies in a tier between its uses: what is in memory of it, and the store's own buffers.
void add_tiers(const PlanInput& input, const PagedBytes& paged, int streams, bool on_device, RankMemory& memory) {
  if (paged.nvme + paged.host == 0) return;
  const OptimizerOptions& optimizer = input.optimizer;
  const bool on_nvme = paged.nvme > 0, through_host = on_device && on_nvme;
  memory.nvme += paged.nvme;
  memory.streamed += paged.on_disk;
  memory.nvme_moved += paged.nvme_moved;
  memory.link_moved += paged.link_moved;
  memory.outside_tiers += paged.resident;
  memory.size.optimizer -= paged.state + paged.results;
  memory.size.optimizer += std::min(paged.places, paged_in_memory(paged, streams, optimizer, on_device));
  const std::size_t buffers = (on_nvme ? store_buffer_bytes(optimizer.refresh.queue_depth) : 0) +
                              (through_host ? DeviceStore::buffers * paged.largest : 0);
  memory.host_tier += paged.host;
  (on_device ? memory.host_tier : memory.size.optimizer) += buffers;
}

}  // namespace

std::vector<UpdatedTensor> updated_tensors(const StagePlan& stage, const RankLayout& layout, const PlanInput& input,
                                           int dp_rank, int tp_rank) {
  using Rule = UpdatedTensor::Rule;
  std::vector<UpdatedTensor> tensors;
  for (int spec = 0; spec < static_cast<int>(layout.tensors.size()); ++spec) {
    const TensorHolding& tensor = layout.tensors[at(spec)];
    if (tensor.owned_elements() == 0) continue;
    if (!stage.is_matrix(spec)) {
      TensorSpec rows = tensor.local;
      rows.rows = tensor.owned_rows();
      tensors.push_back({Rule::scalar, &tensor.whole, std::move(rows), false});
    } else if (tensor.sharded) {
      tensors.push_back({Rule::shard, &tensor.whole, tensor.local, false});
    } else if (!tensor.homed || is_home(stage, spec, tp_rank)) {
      tensors.push_back({Rule::matrix, &tensor.whole, tensor.homed ? tensor.whole : tensor.local, tensor.homed});
    }
  }
  for (const MatrixShare& share : stage.shares) {
    if (share.rank != dp_rank * input.parallel.tp + tp_rank) continue;
    const TensorSpec& matrix = stage.specs[at(share.spec)];
    const TensorSpec kept = share.ranks == 1 && is_whole(share, matrix) ? matrix : share_shape(share);
    tensors.push_back({share.ranks == 1 ? Rule::matrix : Rule::shard, &matrix, kept, true});
  }
  return tensors;
}

const PartScratch::Scratch& PartScratch::find(const MatrixPart& part) {
  const auto [place, is_new] = known_.try_emplace({part.rows, part.cols, part.is_copied()});
  if (is_new) place->second = {host_scratch(*optimizer_.matrix, part), device_batch_scratch(*optimizer_.matrix, part)};
  return place->second;
}

namespace {

// The updates of one rank.
class RankUpdates {
 public:
  RankUpdates(UpdateMemory& known, RankMemory& memory)
      : known_(known), scratch_(known.input, known.threads, known.scratch), meter_(known.input), memory_(memory) {}

  void add_scalar(const UpdatedTensor& tensor) {
    const auto rows = tensor.kept.rows, cols = tensor.kept.cols;
    const OptimizerOptions& optimizer = known_.input.optimizer;
    const std::size_t state = adamw_bytes(*tensor.whole, rows, cols, optimizer, known_.width.accumulate);
    add_state(state, tensor.kept.elements(), elements_of(tensor.kept));
    meter_.add(elements_of(tensor.kept));
    memory_.scalar_elements += tensor.kept.elements();
    memory_.scalar_state += state;
    paged_.add(paged_bytes(*tensor.whole, rows, cols, optimizer, known_.width.accumulate,
                           known_.on_device ? MemorySpace::device : MemorySpace::host));
  }
  // often: refreshes of a matrix in one update.
  void add_matrix(const UpdatedTensor& tensor, double often) {
    const TensorSpec& kept = tensor.kept;
    add_state(known_.state.of(kept), kept.elements(), kept.has_master() ? elements_of(kept) : 0);
    if (kept.is_coded()) memory_.saved += bytes_apart(kept, known_.width.compute, known_.width.accumulate);
    scratch_.add(kept);
    meter_.add(elements_of(kept));
    meter_.add_matrix(kept);
    const RefreshNeeds jobs = known_.jobs.of(kept);
    if (known_.on_device)
      memory_.workers += jobs.results + jobs.orders + jobs.copies;
    else
      memory_.size.optimizer += jobs.results + jobs.orders;
    if (known_.beside_device)
      memory_.refresh_moved += static_cast<double>(jobs.results + jobs.orders + jobs.copies) * often;
    job_ = std::max(job_, jobs.scratch);
    paged_.add(known_.paged.of(kept));
  }
  void add_shard(const UpdatedTensor& tensor) {
    const TensorSpec& kept = tensor.kept;
    const std::int64_t moments = shard_moments(*known_.input.optimizer.matrix, *tensor.whole, kept);
    add_state(static_cast<std::size_t>(kept.elements() + moments) * sizeof(float), kept.elements(), elements_of(kept));
    scratch_.add_shard(*tensor.whole, kept);
    meter_.add(elements_of(kept));
    if (!tensor.away) meter_.add_shard(*tensor.whole, kept);
  }
  void end() {
    const int streams = scratch_.streams();
    memory_.size.workspace += scratch_.total(streams) + meter_.total();
    (known_.on_device ? memory_.workers : memory_.size.workspace) +=
        at(known_.input.optimizer.refresh_workers()) * job_;
    add_tiers(known_.input, paged_, streams, known_.on_device, memory_);
  }

 private:
  // master: elements of master weights.
  void add_state(std::size_t bytes, std::int64_t elements, std::size_t master) {
    const bool means = known_.input.train.ema_tau > 0, looks_ahead = known_.input.train.lookahead.factor > 0;
    const std::size_t weights = master * known_.width.accumulate,
                      state = bytes + ((means ? 1 : 0) + (looks_ahead ? 1 : 0)) * weights;
    memory_.size.optimizer += state + (looks_ahead ? weights : 0);
    memory_.size.parameters += elements;
    memory_.saved += state + weights;
  }

  UpdateMemory& known_;
  UpdateScratch scratch_;
  MeterMemory meter_;
  RankMemory& memory_;
  PagedBytes paged_;
  std::size_t job_ = 0;
};

}  // namespace

UpdateMemory::UpdateMemory(const PlanInput& in, int number_of_threads)
    : input(in),
      width(width_of(in)),
      threads(number_of_threads),
      on_device(threads == 0),
      beside_device(on_device || in.machine.memory || in.machine.host_bandwidth),
      state(state_bytes(in.optimizer)),
      paged([&in, space = on_device ? MemorySpace::device : MemorySpace::host](const TensorSpec& spec) {
        return paged_bytes(spec, in.optimizer, space);
      }),
      jobs([&in](const TensorSpec& spec) { return job_needs(spec, in.optimizer); }),
      scratch(in.optimizer) {}

void UpdateMemory::add(const std::vector<UpdatedTensor>& tensors, const StagePlan& stage, RankMemory& memory) {
  const double often = input.optimizer.matrix ? refreshes_per_update(stage, input.optimizer) : 0;
  RankUpdates rank(*this, memory);
  for (const UpdatedTensor& tensor : tensors) {
    if (tensor.rule == UpdatedTensor::Rule::scalar) rank.add_scalar(tensor);
    if (tensor.rule == UpdatedTensor::Rule::matrix) rank.add_matrix(tensor, often);
    if (tensor.rule == UpdatedTensor::Rule::shard) rank.add_shard(tensor);
    if (tensor.away) memory.size.master += elements_of(tensor.kept) * width.accumulate;
  }
  rank.end();
}

}  // namespace sestina
