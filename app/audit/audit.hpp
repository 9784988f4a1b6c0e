// The audit of an update (run.audit_every): calculations that must come out the same are compared by the digests of
// their bits. Each data-parallel replica computes one micro-batch of the next one again, before its own; a lone replica
// its own. One audit looks at the first micro-batch of each replica, the next one at its second, and so on in turn.
// Weights that ranks compute with, and state of which several ranks keep a copy, are compared too.
//
// Where gradients differ all replicas compute these micro-batches twice more, and a third one does where there is one:
// the result that most have is right. These passes leave digests between layers, which tell where a fault that comes
// again begins (first_difference.hpp). The comparison sees one micro-batch of each replica and the ranks that compute
// it, so a fault that lasts is found by the next audit, one that does not where it meets that micro-batch. No Kokkos.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "app/audit/audit_verdict.hpp"
#include "app/audit/first_difference.hpp"
#include "app/audit/planned_flips.hpp"
#include "app/audit/replica_check.hpp"
#include "io/tokens/data_loader.hpp"
#include "kernels/base/error.hpp"

namespace sestina {

class Audit {
 public:
  // Collective over world. All must outlive it. Error(bad_deck) where ranks have different instruction sets, whose bits
  // are different ones.
  Audit(Executor&, BitAudit&, PlannedFlips&, const SampleSet& training, const Options&, Communicator& world);

  bool is_due(std::int64_t t) const { return t % every_ == 0; }
  // Returns which of its micro-batches the audit of update t looks at on this rank.
  int audited_micro(std::int64_t t) const { return audited_micro(t, executor_.share()); }
  // Called before the passes of update t, which begins at this sample: computes a micro-batch of the next replica. lose
  // is told of data that cannot be read.
  void begin(std::int64_t t, std::uint64_t sample, const std::function<void(const Error&)>& lose);

  struct Finding {
    AuditVerdict::Kind kind = AuditVerdict::Kind::equal;
    bool of_weights = false;                    // replicas were different before the update
    std::string what;                           // what differed, on which ranks; the same on all of them
    std::optional<FirstDifference> began = {};  // where gradients that differ began
  };
  // Called after these passes, before their update: compares. Gradients are not those of the update any more where
  // something differs. lost: some data could not be read here, so nothing is compared. Collective over world.
  Finding compare(bool lost);

 private:
  // Where results differ, in the passes that were computed again.
  struct Replays {
    ReplicaResults results;
    std::vector<PassDigest> digests;  // those of the last passes
  };
  std::uint64_t first_sample(const BatchShare&) const;
  Digests compute(int replica);
  Replays replay();
  int audited_micro(std::int64_t t, const BatchShare&) const;
  BatchView read_audited(int replica);
  Finding judge_gradients(const std::vector<std::string>& where);
  void judge_replica(int replica, const Replays&, const std::vector<std::string>& where, Finding&);
  FirstDifference difference_of(int replica, const Replays&, std::size_t tensor, const std::vector<int>& wrong) const;
  Finding tell(const Finding&);
  std::string name_ranks(const std::vector<int>& ranks, int stride, const std::vector<std::string>& where) const;
  std::string describe(const ReplicaCheck::Difference&, int stride, const std::vector<std::string>& where) const;

  Executor& executor_;
  BitAudit& bits_;
  PlannedFlips& flips_;
  const SampleSet& training_;
  const Options& options_;
  Communicator& world_;
  ReplicaCheck replicas_, shards_;  // over data-parallel and tensor-parallel ranks
  std::int64_t every_, t_ = 0;
  std::uint64_t sample_ = 0;
  std::function<void(const Error&)> lose_;
  Batch batch_;
  Digests theirs_;          // of the next replica's micro-batch, as this rank computed it
  ReplicaResults results_;  // gradients, by tensor
};

}  // namespace sestina
