// The proof of the updates: what all ranks tell of their tensors' updates, compared with what the deck asks for, and
// folded into the lines of the metrics. No Kokkos.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/report/metrics.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/step/pipeline_stage.hpp"

namespace sestina {

using RankRecords = std::vector<std::vector<UpdateRecord>>;  // by rank of the run

// Returns the records of all ranks, on all of them; collective.
RankRecords gather_records(Communicator& world, const std::vector<PipelineStage*>& stages);

class UpdateProof {
 public:
  explicit UpdateProof(const Plan& plan) : plan_(plan) {}  // which must outlive it

  // Requires that every tensor that is trained is updated by the rule that the deck asks for and by no other, all of
  // its elements once, and that its optimizer was called once for each update of its stage. Fails on all ranks
  // (Error(internal)) where that is not so. Returns whether all stages have made an update: a stage that withheld its
  // first one has proved nothing yet.
  bool require_asked(const RankRecords&) const;

  // Returns a line for all tensors of a pattern that a rule updates in the same way; calls are those since the last
  // lines.
  std::vector<Metrics::UpdateLine> lines(const RankRecords&);

 private:
  const Plan& plan_;
  std::map<std::string, std::int64_t> told_;  // calls by tensor, up to the last lines
};

}  // namespace sestina
