#include "app/audit/audit_verdict.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace sestina {
namespace {

std::optional<std::uint64_t> find_right(std::span<const Computed> all) {
  std::map<std::uint64_t, int> count;
  for (const Computed& one : all) ++count[one.digest];
  const auto most =
      std::max_element(count.begin(), count.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto as_frequent =
      std::count_if(count.begin(), count.end(), [&](const auto& one) { return one.second == most->second; });
  if (most->second < 2 || as_frequent > 1) return std::nullopt;
  return most->first;
}

}  // namespace

AuditVerdict judge(std::span<const Computed> all) {
  if (std::all_of(all.begin(), all.end(), [&](const Computed& one) { return one.digest == all.front().digest; }))
    return {};
  const std::optional<std::uint64_t> right = find_right(all);
  std::set<int> wrong;
  for (const Computed& one : all)
    if (!right || one.digest != *right) wrong.insert(one.rank);
  AuditVerdict verdict{AuditVerdict::Kind::transient, {wrong.begin(), wrong.end()}};
  if (!right) {
    verdict.kind = wrong.size() > 1 ? AuditVerdict::Kind::undecided : AuditVerdict::Kind::persistent;
    return verdict;
  }
  for (const int rank : wrong) {
    const auto last = std::find_if(all.rbegin(), all.rend(), [&](const Computed& one) { return one.rank == rank; });
    if (last->digest != *right) verdict.kind = AuditVerdict::Kind::persistent;
  }
  return verdict;
}

void ReplicaResults::add(const std::vector<int>& distances, const Digests& mine) {
  const std::size_t replicas = of_replicas_.size(), n = mine.size() / distances.size();
  Digests all(mine.size() * replicas);
  group_->all_gather(mine.data(), mine.size() * sizeof(std::uint64_t), all.data());
  for (auto& of_replica : of_replicas_) of_replica.resize(n);
  for (std::size_t rank = 0; rank < replicas; ++rank)
    for (std::size_t d = 0; d < distances.size(); ++d) {
      auto& of_replica = of_replicas_[(rank + static_cast<std::size_t>(distances[d])) % replicas];
      for (std::size_t i = 0; i < n; ++i)
        of_replica[i].push_back({static_cast<int>(rank), all[rank * mine.size() + d * n + i]});
    }
}

bool ReplicaResults::differ() const {
  for (const auto& of_replica : of_replicas_)
    for (const std::vector<Computed>& one : of_replica)
      if (judge(one).kind != AuditVerdict::Kind::equal) return true;
  return false;
}

}  // namespace sestina
