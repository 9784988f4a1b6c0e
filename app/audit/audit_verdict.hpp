// The verdict on a calculation that ranks did several times: which result is right, which ranks were wrong, and whether
// they still are; and the results of replicas. No Kokkos.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace sestina {

// The digest of a result. Those of one rank stand in the order of time.
struct Computed {
  int rank = 0;
  std::uint64_t digest = 0;
};

struct AuditVerdict {
  enum class Kind {
    equal,
    transient,   // what was wrong for once came out right later
    undecided,   // ranks repeat themselves and disagree
    persistent,  // it was still wrong when it was computed last
  } kind = Kind::equal;
  std::vector<int> ranks;  // those that were wrong, in order; undecided: all of them
};

// The result that most computations have is right, where at least two have it and no other one is as frequent. Without
// one a lone rank is wrong, and several are undecided.
AuditVerdict judge(std::span<const Computed>);

using Digests = std::vector<std::uint64_t>;

// The digests of what data-parallel replicas computed, each of some micro-batches of its own and of others, by the
// replica whose micro-batch it is.
class ReplicaResults {
 public:
  // The group of the replicas must outlive it.
  explicit ReplicaResults(Communicator& group) : group_(&group), of_replicas_(static_cast<std::size_t>(group.size())) {}
  // Adds what all replicas computed: mine has, for each distance, the digests of the replica so far after this one.
  // All lists are as long. Collective over the group.
  void add(const std::vector<int>& distances, const Digests& mine);
  // Returns the number of digests of a micro-batch.
  std::size_t size() const { return of_replicas_.front().size(); }
  AuditVerdict verdict(std::size_t replica, std::size_t i) const { return judge(of_replicas_[replica][i]); }
  bool differ() const;

 private:
  Communicator* group_;
  std::vector<std::vector<std::vector<Computed>>> of_replicas_;  // by replica and digest
};

}  // namespace sestina
