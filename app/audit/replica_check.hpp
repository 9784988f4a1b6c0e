// What several ranks keep the same, compared by digest: the weights that they compute with, and optimizer state of
// which each of them updates its own copy. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/step/executor.hpp"

namespace sestina {

class ReplicaCheck {
 public:
  // Finds out what ranks of the group have in common. Collective; executor, audit and group must outlive it.
  ReplicaCheck(const Executor&, BitAudit&, Communicator& group);

  struct Difference {
    std::string name;        // of the first
    std::vector<int> ranks;  // those of the group that differ from most; with as many on either side, all of them
    int count = 0;           // tensors and fields that differ
  };
  // Compares them, between two updates. Collective; the same on all ranks of the group.
  std::optional<Difference> compare();

 private:
  std::vector<StateField> fields() const;

  const Executor& executor_;
  BitAudit& bits_;
  Communicator& group_;
  std::vector<std::uint64_t> shared_;  // keys that several ranks have, sorted
};

}  // namespace sestina
