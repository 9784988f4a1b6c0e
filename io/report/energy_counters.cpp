#include "io/report/energy_counters.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <utility>

namespace sestina {
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
  if (!folder.starts_with("intel-rapl:")) return false;  // the same counters by another way: intel-rapl-mmio
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
