#include <algorithm>
#include <cstring>

#include "core/memory/pager.hpp"
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
  const Pin pin(field.pager, field.data, Pager::Need::reading);
  std::optional<std::size_t> found;
  for (std::size_t at = 0; at < bytes; at += piece) {
    const std::size_t count = std::min(piece, bytes - at);
    std::memcpy(to + at, static_cast<const std::byte*>(field.data) + at, count);
    if (found) continue;
    if (const auto index = first_nonfinite(field.dtype, to + at, count)) found = at / size_of(field.dtype) + *index;
  }
  return found;
}

// Copies a field; names its first value that is not finite, "" none.
std::string copy_field(const StateField& field, const CopyFromDevice& copy_from_device, std::byte* to) {
  std::optional<std::size_t> bad;
  if (field.on_device) {
    SESTINA_REQUIRE(copy_from_device, "{} lies on the device and cannot be copied", field.path);
    copy_from_device(field, to);
    bad = first_nonfinite(field.dtype, to, field.bytes());
  } else {
    bad = copy_and_check(field, to);
  }
  places_to_whole(field, to);
  return bad ? nonfinite_text(field, to + *bad * size_of(field.dtype), *bad) : "";
}

bool is_beyond_memory(const StateField& field) {
  return field.pager != nullptr && field.pager->is_beyond_memory(field.data);
}

}  // namespace

void take_snapshot(const std::vector<StateField>& fields, const RunState& run, const CopyFromDevice& copy_from_device,
                   Snapshot& snapshot, bool copies) {
  constexpr std::size_t kAlign = 64;
  const auto room = [](const StateField& field) { return (field.bytes() + kAlign - 1) / kAlign * kAlign; };
  const auto streams = [copies](const StateField& field) { return !copies || is_beyond_memory(field); };
  std::size_t total = 0;
  for (const StateField& field : fields)
    if (field.saved && !streams(field)) total += room(field);
  if (snapshot.storage.size() < total) snapshot.storage = std::vector<std::byte>(total);
  snapshot.fields.clear();
  snapshot.streamed.clear();
  snapshot.run = run;
  snapshot.problem.clear();
  std::byte* to = snapshot.storage.data();
  for (const StateField& from : fields) {
    if (!from.saved) continue;
    StateField& field = snapshot.fields.emplace_back(from);
    if (streams(from)) {
      snapshot.streamed.push_back(from);
      field.data = nullptr;
    } else {
      const std::string problem = copy_field(from, copy_from_device, to);
      if (snapshot.problem.empty()) snapshot.problem = problem;
      field.data = to;
      to += room(from);
    }
    field.pager = nullptr;
    field.of_places = false;
    field.on_device = false;
  }
}

}  // namespace sestina
