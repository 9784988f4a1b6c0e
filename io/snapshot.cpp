#include <cstring>

#include "io/checkpoint.hpp"
#include "kernels/error.hpp"

namespace sestina {

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
  std::byte* to = snapshot.storage.data();
  for (StateField& field : snapshot.fields) {
    if (field.on_device) {
      SESTINA_REQUIRE(copy_from_device, "{} lies on the device and there is no way to copy it", field.path);
      copy_from_device(field, to);
    } else if (field.bytes() > 0) {
      std::memcpy(to, field.data, field.bytes());
    }
    field.data = to;
    field.on_device = false;
    to += (field.bytes() + kAlign - 1) / kAlign * kAlign;
  }
}

}  // namespace sestina
