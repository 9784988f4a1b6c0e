// The kernels of a run compared with their plain references on every rank (core/check): by `sestina check`,
// and at the start of a run that computes on a device (run.check). A device on which all of them held is remembered,
// with its driver and this build, in a file of its node. No Kokkos.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/check/kernel_check.hpp"
#include "core/deck/options.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {

struct RankChecks {
  std::string host, machine;  // machine: the device, or the host's instruction set
  bool judged = true;         // false on a device that computes nothing: only that all kernels run
  std::vector<KernelCheck> checks;
};

// Returns the check as JSON, as ranks tell each other and `sestina check --json` prints; an infinite error is null.
nlohmann::ordered_json to_json(const KernelCheck&);

// Whether a library may compute attention in this run (kernels/model/device/attention_fused.hpp). Asked where not, that
// would load it.
bool may_have_attention(const Options&);

// Checks the kernels on all ranks, which have their Kokkos, and what they send each other. Collective; the result is
// the same on all ranks.
std::vector<RankChecks> check_ranks(const Options&, Runtime&);

// Returns the sentences of wrong_kernels for all ranks that are judged, each with rank, host and machine.
std::vector<std::string> wrong_kernels(const std::vector<RankChecks>&);

// Return and keep whether this key is among those of the file. Without a file, or where it cannot be written, nothing
// is remembered; remember_check then returns false.
bool is_remembered(const std::string& file, const std::string& key);
bool remember_check(const std::string& file, const std::string& key);

// Does check_ranks where run.check asks for it: "always", or "first" on a device of which no such build has remembered
// it with this model. Throws Error(unavailable) on all ranks that names the kernels which do not hold. The first rank
// logs a line. Collective.
void check_kernels_at_start(const Options&, Runtime&);

}  // namespace sestina
