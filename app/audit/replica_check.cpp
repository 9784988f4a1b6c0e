#include "app/audit/replica_check.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "app/audit/audit_verdict.hpp"
#include "kernels/base/random.hpp"

namespace sestina {
namespace {

// Returns the key of a slab of a tensor, the same on every rank that has the same one.
std::uint64_t key_of(const StateField& field) {
  return stream_of(
      0, fmt::format("{} {} {} {} {}", field.path, field.row_begin, field.row_end, field.col_begin, field.col_end));
}

// What a rank says of one key.
struct Said {
  std::uint64_t has = 0, digest = 0;
};

}  // namespace

ReplicaCheck::ReplicaCheck(const Executor& executor, BitAudit& bits, Communicator& group)
    : executor_(executor), bits_(bits), group_(group) {
  std::string keys;
  for (const StateField& field : fields()) {
    const std::uint64_t key = key_of(field);
    keys.append(reinterpret_cast<const char*>(&key), sizeof key);
  }
  std::map<std::uint64_t, int> holders;
  for (const std::string& of_rank : group_.all_gather(keys))
    for (std::size_t i = 0; i + sizeof(std::uint64_t) <= of_rank.size(); i += sizeof(std::uint64_t)) {
      std::uint64_t key = 0;
      std::memcpy(&key, of_rank.data() + i, sizeof key);
      ++holders[key];
    }
  for (const auto& [key, count] : holders)
    if (count > 1) shared_.push_back(key);
}

std::vector<StateField> ReplicaCheck::fields() const {
  std::vector<StateField> all = bits_.weight_fields();
  for (StateField& field : executor_.fields()) all.push_back(std::move(field));
  return all;
}

std::optional<ReplicaCheck::Difference> ReplicaCheck::compare() {
  if (shared_.empty()) return std::nullopt;
  const std::size_t n = shared_.size();
  std::vector<Said> mine(n), all(n * static_cast<std::size_t>(group_.size()));
  std::vector<std::string> names(n);
  for (const StateField& field : fields()) {
    const std::uint64_t key = key_of(field);
    const auto found = std::lower_bound(shared_.begin(), shared_.end(), key);
    if (found == shared_.end() || *found != key) continue;
    const auto i = static_cast<std::size_t>(found - shared_.begin());
    mine[i] = {1, bits_.digest(field)};
    names[i] = field.path;
  }
  group_.all_gather(mine.data(), n * sizeof(Said), all.data());
  std::optional<Difference> first;
  for (std::size_t i = 0; i < n; ++i) {
    std::vector<Computed> copies;
    for (int rank = 0; rank < group_.size(); ++rank)
      if (const Said& said = all[static_cast<std::size_t>(rank) * n + i]; said.has == 1)
        copies.push_back({rank, said.digest});
    if (copies.empty()) continue;
    const AuditVerdict verdict = judge(copies);
    if (verdict.kind == AuditVerdict::Kind::equal) continue;
    if (!first) first = Difference{names[i], verdict.ranks, 0};
    ++first->count;
  }
  if (!first) return first;
  for (const std::string& name : group_.all_gather(first->name))  // a rank that lacks it does not know it
    if (!name.empty()) first->name = name;
  return first;
}

}  // namespace sestina
