// The verdict on a calculation that ranks did several times: which result is right, which ranks were wrong, and whether
// they still are. No Kokkos.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

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

}  // namespace sestina
