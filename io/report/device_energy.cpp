#include "io/report/device_energy.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

namespace sestina {
namespace {

constexpr int success = 0;  // NVML_SUCCESS

}  // namespace

DeviceEnergy::DeviceEnergy(const Options& options) {
  std::vector<std::string> ids = options.bus_ids;  // ranks may share a device
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  std::erase(ids, "");
  used_ = !ids.empty();
  if (!used_ || (library_ = ::dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL)) == nullptr) return;
  open(ids);
  if (devices_.size() != ids.size()) devices_.clear();
}

DeviceEnergy::~DeviceEnergy() { close(); }

template <class Function>
Function DeviceEnergy::find(const char* name) const {
  return reinterpret_cast<Function>(::dlsym(library_, name));
}

// The devices that answer.
void DeviceEnergy::open(const std::vector<std::string>& bus_ids) {
  const auto initialise = find<int (*)()>("nvmlInit_v2");
  const auto handle_of = find<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  read_ = find<int (*)(void*, unsigned long long*)>("nvmlDeviceGetTotalEnergyConsumption");
  if (!initialise || !handle_of || !read_) return;
  initialised_ = initialise() == success;
  if (!initialised_) return;
  for (const std::string& id : bus_ids) {
    Device device;
    if (handle_of(id.c_str(), &device.handle) != success || read_(device.handle, &device.last) != success) return;
    devices_.push_back(device);
  }
}

void DeviceEnergy::close() {
  if (library_ == nullptr) return;
  if (const auto shut_down = find<int (*)()>("nvmlShutdown"); initialised_ && shut_down) shut_down();
  ::dlclose(library_);
}

std::optional<double> DeviceEnergy::take_joules() {
  double millijoules = 0;
  bool good = known();
  for (Device& device : devices_) {
    unsigned long long now = 0;
    if (read_(device.handle, &now) != success || now < device.last) {  // a driver that was loaded again
      good = false;
      device.last = now;
      continue;
    }
    millijoules += static_cast<double>(now - device.last);
    device.last = now;
  }
  const bool since = std::exchange(started_, good);
  if (!good || !since) return std::nullopt;
  return millijoules * 1e-3;
}

}  // namespace sestina
