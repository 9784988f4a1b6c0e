// Checks on NCCL that the ranks of a group make before they connect: NCCL itself waits, or ends in a bare code. No
// Kokkos.
#pragma once
#include <string>
#include <vector>

#include "kernels/base/error.hpp"

namespace sestina {

// Returns "2.28.9" for NCCL's number of its version, which had another form before 2.9.
inline std::string nccl_version_text(int code) {
  const bool old = code < 10000;
  const int major = old ? code / 1000 : code / 10000, rest = old ? code % 1000 : code % 10000;
  return fmt::format("{}.{}.{}", major, rest / 100, rest % 100);
}

// versions: those of the library that the ranks of a group found. The first version with connections by configuration
// is 2.14 (user guide, "ncclCommInitRankConfig"); between ranks with different versions the handshake is undefined.
inline void require_nccl_versions(const std::vector<int>& versions) {
  constexpr int first = 21400;
  for (std::size_t rank = 0; rank < versions.size(); ++rank) {
    const int version = versions[rank];
    if (version < first)
      fail(ExitCode::unavailable, "NCCL: version on rank {} of the group: got {}, at least {} is needed", rank,
           nccl_version_text(version), nccl_version_text(first));
    if (version != versions[0])
      fail(ExitCode::unavailable, "NCCL: version on rank {} of the group: got {}, rank 0 has {}: they must be the same",
           rank, nccl_version_text(version), nccl_version_text(versions[0]));
  }
}

}  // namespace sestina
