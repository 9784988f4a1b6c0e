// The rotations of POET-X as all ranks measured them, folded into the lines of the metrics, and the weight that is
// turned furthest. No Kokkos.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "io/report/metrics.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/step/pipeline_stage.hpp"

namespace sestina {

struct RotationLines {
  std::vector<Metrics::RotationLine> lines;  // one for all weights of a pattern, in the model's order
  std::string furthest;                      // the weight with the largest ||Q||_2; "": none was measured
  double largest_q = 0;                      // that norm
};

// Returns them on all ranks; collective.
RotationLines gather_rotations(Communicator& world, const std::vector<PipelineStage*>& stages, const Plan&);

// Returns the layers that were merged early after the last update, in their order, on all ranks; collective.
std::vector<EarlyMerge> gather_early_merges(Communicator& world, const std::vector<PipelineStage*>& stages);

}  // namespace sestina
