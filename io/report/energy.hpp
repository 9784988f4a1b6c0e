// The energy that the processors and the devices of this node have taken. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sestina {

// The energy that devices have taken, as NVIDIA's management library counts it (nvmlDeviceGetTotalEnergyConsumption,
// millijoules since its driver was loaded). The library is loaded when the program runs, where there is one: no build
// needs it. A reading allocates nothing.
class DeviceEnergy {
 public:
  struct Options {
    std::vector<std::string> bus_ids = {};  // as device_bus_id() gives them, "" for none; each device counts once
    std::string library = "libnvidia-ml.so.1";
  };
  explicit DeviceEnergy(const Options&);
  ~DeviceEnergy();
  DeviceEnergy(const DeviceEnergy&) = delete;
  DeviceEnergy& operator=(const DeviceEnergy&) = delete;

  bool used() const { return used_; }               // there are devices to ask
  bool known() const { return !devices_.empty(); }  // and all of them answer
  // Returns the joules of all devices since the last call; empty at the first call, and where one of two readings
  // failed.
  std::optional<double> take_joules();

 private:
  struct Device {
    void* handle = nullptr;
    unsigned long long last = 0;  // millijoules
  };
  void open(const std::vector<std::string>& bus_ids);
  void close();
  template <class Function>
  Function find(const char* name) const;

  bool used_ = false, started_ = false, initialised_ = false;
  void* library_ = nullptr;
  int (*read_)(void* device, unsigned long long* millijoules) = nullptr;
  std::vector<Device> devices_;
};

// The energy that the processors of this node have taken, from the counters of the system's powercap tree (RAPL; its
// form: Documentation/power/powercap/powercap.rst of Linux), and its devices. A reading allocates nothing.
class EnergyCounters {
 public:
  struct Options {
    std::string root = "/sys/class/powercap";  // "": none
    DeviceEnergy::Options devices = {};
  };
  // Takes the zones that count by themselves: packages, and their memory ("dram"), which no package's count holds.
  // Zones below a package (core, uncore) are in its count, and that of a whole platform (psys) holds the packages.
  // Where one of them is not readable (mostly for root alone) nothing is known of processors; where devices are used
  // and one of them does not tell its energy, nothing at all: processors are the smaller part then.
  explicit EnergyCounters(const Options&);
  ~EnergyCounters();
  EnergyCounters(const EnergyCounters&) = delete;
  EnergyCounters& operator=(const EnergyCounters&) = delete;

  bool known() const { return devices_.used() ? devices_.known() : !zones_.empty(); }
  // Returns the joules of all that is known since the last call; empty at the first call, and where one of two readings
  // failed. A counter may have started again from 0 once meanwhile (a package at 300 W: every 15 minutes).
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
