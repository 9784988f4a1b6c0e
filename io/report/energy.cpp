#include "io/report/energy.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
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
  if (!used_) return;
  library_ = ::dlopen(options.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) {
    problem_ = options.library + " is not there";
    return;
  }
  open(ids);
  if (devices_.size() == ids.size()) return;
  problem_ = "device " + ids[devices_.size()] + " does not tell its energy";
  devices_.clear();
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

// Returns the domain that a zone counts by itself, "" where it does not: "intel-rapl:0" is a package (or the platform),
// "intel-rapl:0:1" a part of it.
std::string domain_of(const fs::path& zone) {
  const std::string folder = zone.filename().string(), name = first_word(zone / "name");
  if (!folder.starts_with("intel-rapl:")) return "";  // intel-rapl-mmio has the same counters again
  const auto depth = std::count(folder.begin(), folder.end(), ':');
  if (depth == 1 && name.starts_with("package")) return "package";
  return depth == 2 && name == "dram" ? name : "";
}

std::string told(const char* name, std::size_t counters, const std::string& problem, const std::string& absent) {
  if (!problem.empty()) return std::string(name) + " not read (" + problem + ")";
  if (counters == 0) return std::string(name) + " not counted (" + absent + ")";
  return std::string(name) + " read (" + std::to_string(counters) + (counters > 1 ? " counters)" : " counter)");
}

}  // namespace

// Opens the counter of a zone. Where one cannot be read, the problem stays and nothing else of the domain is kept.
void EnergyCounters::Domain::open(const std::string& zone) {
  const std::string path = zone + "/energy_uj";
  Zone opened;
  errno = 0;
  opened.file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened.file < 0 && problem.empty()) problem = path + ": " + std::strerror(errno);
  std::ifstream(zone + "/max_energy_range_uj") >> opened.most;
  zones.push_back(opened);
  if (problem.empty() && (opened.most == 0 || !read_number(opened.file))) problem = path + " holds no number";
}

void EnergyCounters::Domain::close() {
  for (const Zone& zone : zones)
    if (zone.file >= 0) ::close(zone.file);
  zones.clear();
}

std::optional<double> EnergyCounters::Domain::take() {
  double microjoules = 0;
  bool good = !zones.empty();
  for (Zone& zone : zones) {
    const std::optional<std::uint64_t> now = read_number(zone.file);
    good = good && now;
    if (!now) continue;
    microjoules += static_cast<double>(*now >= zone.last ? *now - zone.last : zone.most - zone.last + *now);
    zone.last = *now;
  }
  const bool since = std::exchange(started, good);
  if (!good || !since) return std::nullopt;
  return microjoules * 1e-6;
}

EnergyCounters::EnergyCounters(const Options& options) : root_(options.root), devices_(options.devices) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(root_, none)) {
    const std::string domain = domain_of(entry.path());
    if (!domain.empty()) (domain == "dram" ? memory_ : package_).open(entry.path().string());
  }
  counted_ = package_.zones.size() + memory_.zones.size() > 0;
  for (Domain* domain : {&package_, &memory_}) {
    if (domain->problem.empty()) continue;
    domain->close();
    counted_ = false;
  }
}

Joules EnergyCounters::take() {
  Joules now;
  now.package = package_.take();
  now.memory = memory_.take();
  now.device = devices_.take_joules();
  std::optional<double> processors;
  if (counted_ && (now.package || package_.zones.empty()) && (now.memory || memory_.zones.empty()))
    processors = now.package.value_or(0) + now.memory.value_or(0);
  if (!devices_.used())
    now.all = processors;
  else if (now.device && (processors || !counted_))
    now.all = *now.device + processors.value_or(0);
  return now;
}

std::string EnergyCounters::domains() const {
  const std::string absent = "no counter in " + root_;
  return told("package", package_.zones.size(), package_.problem, absent) + ", " +
         told("dram", memory_.zones.size(), memory_.problem, absent) + ", " +
         told("device", devices_.used() ? 1 : 0, devices_.problem(), "none is used");
}

}  // namespace sestina
