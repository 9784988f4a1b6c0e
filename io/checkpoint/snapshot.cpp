#include <algorithm>
#include <cstring>

#include "core/layout/pager.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/store/finite.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

// Copies a field that lies in host memory, and looks at what it copies while that is in the cache: index of the first
// value that is not finite.
std::optional<std::size_t> copy_and_check(const StateField& field, std::byte* to) {
  constexpr std::size_t piece = std::size_t{1} << 18;
  const std::size_t bytes = field.bytes();
  const Pin pin(field.pager, field.data);
  std::optional<std::size_t> found;
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t count = std::min(piece, bytes - at);
    std::memcpy(to + at, static_cast<const std::byte*>(field.data) + at, count);
    if (found) continue;
    if (const auto index = first_nonfinite(field.dtype, to + at, count)) found = at / size_of(field.dtype) + *index;
  }
  return found;
}

}  // namespace

void take_snapshot(const std::vector<StateField>& fields, const RunState& run,
                   const std::function<void(const StateField&, void*)>& copy_from_device, Snapshot& snapshot) {
  constexpr std::size_t kAlign = 64;
  snapshot.fields.clear();
  for (const StateField& field : fields)
    if (field.saved) snapshot.fields.push_back(field);
  std::size_t total = 0;
  for (const StateField& field : snapshot.fields) total += (field.bytes() + kAlign - 1) / kAlign * kAlign;
  if (snapshot.storage.size() < total) snapshot.storage = std::vector<std::byte>(total);
  snapshot.run = run;
  snapshot.problem.clear();
  snapshot.passing = false;
  std::byte* to = snapshot.storage.data();
  for (StateField& field : snapshot.fields) {
    std::optional<std::size_t> bad;
    if (field.on_device) {
      SESTINA_REQUIRE(copy_from_device, "{} lies on the device and cannot be copied", field.path);
      copy_from_device(field, to);
      bad = first_nonfinite(field.dtype, to, field.bytes());
    } else {
      bad = copy_and_check(field, to);
    }
    places_to_whole(field, to);
    if (bad && snapshot.problem.empty())
      snapshot.problem = nonfinite_text(field, to + *bad * size_of(field.dtype), *bad);
    field.data = to;
    snapshot.passing = snapshot.passing || field.pager != nullptr;
    field.pager = nullptr;
    field.of_places = false;
    field.on_device = false;
    to += (field.bytes() + kAlign - 1) / kAlign * kAlign;
  }
}

}  // namespace sestina
