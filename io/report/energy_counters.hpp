// Energy that the processors of this node have taken, from the counters of the system's powercap tree (RAPL; its form:
// Documentation/power/powercap/powercap.rst of Linux), and its devices (device_energy.hpp). A reading allocates
// nothing. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/report/device_energy.hpp"

namespace sestina {

class EnergyCounters {
 public:
  struct Options {
    std::string root = "/sys/class/powercap";  // "": none
    DeviceEnergy::Options devices = {};
  };
  // Zones that count on their own: packages, and their memory ("dram"), which no package's count holds. Those below a
  // package (core, uncore) are in its count, and a whole platform's (psys) holds the packages. Where one of them is not
  // readable (mostly for root alone) nothing is known of processors; where devices are used and one of them does not
  // tell its energy, nothing at all: processors are the smaller part then.
  explicit EnergyCounters(const Options&);
  ~EnergyCounters();
  EnergyCounters(const EnergyCounters&) = delete;
  EnergyCounters& operator=(const EnergyCounters&) = delete;

  bool known() const { return devices_.used() ? devices_.known() : !zones_.empty(); }
  // Joules of all that is known since the last call; at the first one, and where one of two readings failed, not known.
  // A counter may have started again from 0 once meanwhile (a package at 300 W: every 15 minutes).
  std::optional<double> take_joules();

 private:
  struct Zone {
    int file = -1;           // energy_uj
    std::uint64_t most = 0;  // max_energy_range_uj: the counter starts again after it
    std::uint64_t last = 0;  // microjoules
  };
  void close_all();
  std::optional<double> take_zones();

  std::vector<Zone> zones_;
  DeviceEnergy devices_;
  bool started_ = false;  // every zone has a last reading
};

}  // namespace sestina
