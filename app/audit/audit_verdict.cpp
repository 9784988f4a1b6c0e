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

}  // namespace sestina
