#include "io/report/energy.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
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

// Finds the devices that answer.
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
    if (read_(device.handle, &now) != success || now < device.last) {  // the driver was loaded again
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

namespace {

namespace fs = std::filesystem;

std::string first_word(const fs::path& path) {
  std::string word;
  std::ifstream(path) >> word;
  return word;
}

std::optional<std::uint64_t> read_number(int file) {
  char text[32];
  const ssize_t length = ::pread(file, text, sizeof text, 0);
  std::uint64_t value = 0;
  if (length <= 0 || std::from_chars(text, text + length, value).ec != std::errc()) return std::nullopt;
  return value;
}

// "intel-rapl:0" is a package (or the platform), "intel-rapl:0:1" a part of it.
bool counts(const fs::path& zone) {
  const std::string folder = zone.filename().string(), name = first_word(zone / "name");
  if (!folder.starts_with("intel-rapl:")) return false;  // intel-rapl-mmio has the same counters again
  const auto depth = std::count(folder.begin(), folder.end(), ':');
  return (depth == 1 && name.starts_with("package")) || (depth == 2 && name == "dram");
}

}  // namespace

EnergyCounters::EnergyCounters(const Options& options) : devices_(options.devices) {
  std::error_code none;
  bool readable = true;
  for (const auto& entry : fs::directory_iterator(options.root, none)) {
    if (!counts(entry.path())) continue;
    Zone zone;
    zone.file = ::open((entry.path() / "energy_uj").c_str(), O_RDONLY | O_CLOEXEC);
    std::ifstream(entry.path() / "max_energy_range_uj") >> zone.most;
    zones_.push_back(zone);
    readable = readable && zone.file >= 0 && zone.most > 0 && read_number(zone.file);
  }
  if (!readable) close_all();
}

EnergyCounters::~EnergyCounters() { close_all(); }

void EnergyCounters::close_all() {
  for (const Zone& zone : zones_)
    if (zone.file >= 0) ::close(zone.file);
  zones_.clear();
}

std::optional<double> EnergyCounters::take_joules() {
  const std::optional<double> zones = take_zones(), devices = devices_.take_joules();
  if (!devices_.used()) return zones;
  if (!devices || (!zones && !zones_.empty())) return std::nullopt;
  return *devices + zones.value_or(0);
}

std::optional<double> EnergyCounters::take_zones() {
  double microjoules = 0;
  bool good = !zones_.empty();
  for (Zone& zone : zones_) {
    const std::optional<std::uint64_t> now = read_number(zone.file);
    good = good && now;
    if (!now) continue;
    microjoules += static_cast<double>(*now >= zone.last ? *now - zone.last : zone.most - zone.last + *now);
    zone.last = *now;
  }
  const bool since = std::exchange(started_, good);
  if (!good || !since) return std::nullopt;
  return microjoules * 1e-6;
}

}  // namespace sestina
