#include "app/audit/audit.hpp"

#include <algorithm>

#include "kernels/base/device_memory.hpp"
#include "kernels/base/host_name.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {
namespace {

using Kind = AuditVerdict::Kind;

constexpr int repetitions = 2;  // of each computation, once results differ

// Returns where a rank computes, as a message names it.
std::string own_place() {
  const std::string device = device_bus_id();
  return device.empty() ? host_name() : fmt::format("{}, device {}", host_name(), device);
}

// Returns the others of a list of so many, as words of a sentence.
std::string and_more(int count, const char* what) {
  return count > 1 ? fmt::format(" and {} more {}{}", count - 1, what, count > 2 ? "s" : "") : "";
}

}  // namespace

Audit::Audit(Executor& executor, BitAudit& bits, PlannedFlips& flips, const SampleSet& training, const Options& options,
             Communicator& world)
    : executor_(executor),
      bits_(bits),
      flips_(flips),
      training_(training),
      options_(options),
      world_(world),
      replicas_(executor, bits, *executor.grid().dp_group),
      shards_(executor, bits, *executor.grid().tp_group),
      every_(options.run.audit_every),
      results_(*executor.grid().dp_group) {
  require_one_instruction_set(world, world.size(), "run.audit_every", "0 on such ranks");
  const auto rows = static_cast<std::size_t>(executor.share().micro_batch),
             length = static_cast<std::size_t>(options.data.sequence_length);
  batch_.tokens.resize(rows * (length + 1));
  batch_.first_key.resize(rows * length);
}

void Audit::begin(std::int64_t t, std::uint64_t sample, const std::function<void(const Error&)>& lose) {
  t_ = t;
  sample_ = sample;
  lose_ = lose;
  theirs_ = compute((executor_.grid().dp_rank + 1) % executor_.grid().dp);
}

int Audit::audited_micro(std::int64_t t, const BatchShare& share) const {
  return static_cast<int>((t / every_ - 1) % std::max(1, share.count));
}

// Returns the first sample of a replica's micro-batch that the audit looks at.
std::uint64_t Audit::first_sample(const BatchShare& share) const {
  const int number = share.number(audited_micro(t_, share));
  return sample_ + static_cast<std::uint64_t>(share.micro_batch) * static_cast<std::uint64_t>(number);
}

BatchView Audit::read_audited(int replica) {
  const BatchShare share = batch_share(executor_.plan().input, replica);
  const auto length = static_cast<std::size_t>(options_.data.sequence_length);
  const std::uint64_t first = first_sample(share);
  try {
    for (std::size_t row = 0; row < static_cast<std::size_t>(share.micro_batch); ++row)
      training_.read(first + row, batch_.tokens.data() + row * (length + 1), batch_.first_key.data() + row * length);
  } catch (const Error& error) {  // other ranks compute with this one: it goes on
    lose_(error);
    std::fill(batch_.tokens.begin(), batch_.tokens.end(), 0);
    std::fill(batch_.first_key.begin(), batch_.first_key.end(), 0);
  }
  return {batch_.tokens.data(), options_.data.mask_documents ? batch_.first_key.data() : nullptr};
}

Digests Audit::compute(int replica) {
  bits_.begin_passes(0, flips_.in_pass(t_, true));
  bits_.compute_again(read_audited(replica), executor_.gradient_scale());
  const std::span<const std::uint64_t> digests = bits_.gradients();
  return {digests.begin(), digests.end()};
}

// Computes the micro-batches of this rank and of the next ones twice more, with a look between the layers.
Audit::Replays Audit::replay() {
  const int dp = executor_.grid().dp, me = executor_.grid().dp_rank;
  const std::vector<int> distances = dp == 1 ? std::vector{0} : dp == 2 ? std::vector{0, 1} : std::vector{0, 1, 2};
  Replays replays{ReplicaResults(*executor_.grid().dp_group), {}};
  for (int time = 0; time < repetitions; ++time) {
    Digests gradients, between;
    for (const int distance : distances) {
      bits_.begin_passes(0, flips_.in_pass(t_, true));
      replays.digests = bits_.replay(read_audited((me + distance) % dp), executor_.gradient_scale());
      const std::span<const std::uint64_t> of_weights = bits_.gradients();
      gradients.insert(gradients.end(), of_weights.begin(), of_weights.end());
      for (const PassDigest& one : replays.digests)
        between.insert(between.end(), one.digests.begin(), one.digests.end());
    }
    results_.add(distances, gradients);
    replays.results.add(distances, between);
  }
  return replays;
}

Audit::Finding Audit::compare(bool lost) {
  results_ = ReplicaResults(*executor_.grid().dp_group);
  const std::span<const std::uint64_t> own = bits_.gradients();
  Digests mine = theirs_;
  mine.insert(mine.end(), own.begin(), own.end());
  results_.add({1, 0}, mine);
  const auto of_replicas = replicas_.compare(), of_shards = shards_.compare();
  double found[] = {of_replicas || of_shards ? 1.0 : 0.0, results_.differ() ? 1.0 : 0.0, lost ? 1.0 : 0.0};
  world_.all_reduce(found, std::size(found), Reduction::max);
  if (found[2] > 0 || found[0] + found[1] == 0) return {};
  const std::vector<std::string> where = world_.all_gather(own_place());
  if (found[0] == 0) return tell(judge_gradients(where));
  Finding finding{Kind::persistent, true, "", {}};
  const ProcessGrid& grid = executor_.grid();
  if (of_replicas && grid.dp_rank == 0) finding.what = describe(*of_replicas, grid.tp, where);
  if (of_shards && grid.tp_rank == 0)
    finding.what += fmt::format("{}{}", finding.what.empty() ? "" : "; ", describe(*of_shards, 1, where));
  return tell(finding);
}

// Judges the gradients, with what the passes say that compute them again.
Audit::Finding Audit::judge_gradients(const std::vector<std::string>& where) {
  const Replays replays = replay();
  Finding finding;
  for (int replica = 0; replica < executor_.grid().dp; ++replica) judge_replica(replica, replays, where, finding);
  return finding;
}

void Audit::judge_replica(int replica, const Replays& replays, const std::vector<std::string>& where,
                          Finding& finding) {
  AuditVerdict worst;
  std::size_t first = 0;
  int count = 0;
  for (std::size_t i = bits_.tensors().size(); i-- > 0;) {  // in the order of the backward pass
    const AuditVerdict verdict = results_.verdict(static_cast<std::size_t>(replica), i);
    if (verdict.kind == Kind::equal) continue;
    ++count;
    if (verdict.kind > worst.kind) {
      worst = verdict;
      first = i;
    }
  }
  finding.kind = std::max(finding.kind, worst.kind);
  if (worst.kind == Kind::equal || executor_.grid().dp_rank != 0) return;
  keep_first(finding.began, difference_of(replica, replays, first, worst.ranks));
  finding.what +=
      fmt::format("{}gradients of {}{} in micro-batch {} of replica {} {} {}", finding.what.empty() ? "" : "; ",
                  bits_.tensors()[first], and_more(count, "tensor"),
                  audited_micro(t_, batch_share(executor_.plan().input, replica)), replica,
                  worst.kind == Kind::transient    ? "were wrong for once (transient) on"
                  : worst.kind == Kind::persistent ? "are wrong again when computed again (persistent) on"
                                                   : "come out the same again, but differently (undecided), on",
                  name_ranks(worst.ranks, executor_.grid().tp, where));
}

// Returns where the passes that were computed again first differ; where they agree, the place of this tensor's
// gradient, which was wrong before.
FirstDifference Audit::difference_of(int replica, const Replays& replays, std::size_t tensor,
                                     const std::vector<int>& wrong) const {
  const ProcessGrid& grid = executor_.grid();
  const BatchShare share = batch_share(executor_.plan().input, replica);
  const auto found = first_difference(replays.results, static_cast<std::size_t>(replica), replays.digests);
  FirstDifference difference =
      found ? *found : FirstDifference{place_of_gradient(replays.digests, bits_.tensors()[tensor]), wrong, 0, 0, false};
  for (int& rank : difference.ranks) rank = world_.rank() + (rank - grid.dp_rank) * grid.tp;
  difference.at.micro = audited_micro(t_, share);
  const bool one = difference.at.sequence >= 0;
  difference.first_sample = first_sample(share) + static_cast<std::uint64_t>(one ? difference.at.sequence : 0);
  difference.last_sample = difference.first_sample + static_cast<std::uint64_t>(one ? 0 : share.micro_batch - 1);
  return difference;
}

// Tells all ranks what any of them has found.
Audit::Finding Audit::tell(const Finding& mine) {
  auto kind = static_cast<double>(mine.kind);
  world_.all_reduce(&kind, 1, Reduction::max);
  Finding all{static_cast<Kind>(static_cast<int>(kind)), mine.of_weights, "", {}};
  for (const std::string& what : world_.all_gather(mine.what))
    if (!what.empty()) all.what += fmt::format("{}{}", all.what.empty() ? "" : "; ", what);
  all.began = first_of_ranks(world_, mine.began);
  if (all.began) all.what += fmt::format("; {}", to_text(*all.began));
  return all;
}

// Ranks are those of a group to which this rank belongs, whose members lie `stride` apart.
std::string Audit::name_ranks(const std::vector<int>& ranks, int stride, const std::vector<std::string>& where) const {
  const ProcessGrid& grid = executor_.grid();
  const int own = stride == 1 ? grid.tp_rank : grid.dp_rank;
  std::string names;
  for (const int rank : ranks) {
    const int in_world = world_.rank() + (rank - own) * stride;
    names +=
        fmt::format("{}rank {} ({})", names.empty() ? "" : ", ", in_world, where[static_cast<std::size_t>(in_world)]);
  }
  return names;
}

std::string Audit::describe(const ReplicaCheck::Difference& difference, int stride,
                            const std::vector<std::string>& where) const {
  return fmt::format("{}{}, which ranks keep the same, differ{} on {}", difference.name,
                     and_more(difference.count, "field"), difference.count > 1 ? "" : "s",
                     name_ranks(difference.ranks, stride, where));
}

}  // namespace sestina
