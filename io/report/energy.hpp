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

  bool used() const { return used_; }                      // there are devices to ask
  const std::string& problem() const { return problem_; }  // why they are not known, "" where they are
  bool known() const { return !devices_.empty(); }         // and all of them answer
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
  std::string problem_;
  void* library_ = nullptr;
  int (*read_)(void* device, unsigned long long* millijoules) = nullptr;
  std::vector<Device> devices_;
};

// Joules by domain since the last reading; empty: not known.
struct Joules {
  std::optional<double> package, memory, device;
  std::optional<double> all;  // of all domains that there are
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
  // Of a domain of which one zone is not readable (mostly for root alone) nothing is known, and then the sum of all is
  // not known of processors either; where devices are used and one of them does not tell its energy, there is no sum:
  // processors are the smaller part then.
  explicit EnergyCounters(const Options&);

  bool known() const { return devices_.used() ? devices_.known() : counted_; }
  // Returns the joules since the last call; empty at the first call, and where one of two readings failed. A counter
  // may have started again from 0 once meanwhile (a package at 300 W: every 15 minutes).
  Joules take();
  std::optional<double> take_joules() { return take().all; }
  // Says which domains are counted, and of the others why they are not.
  std::string domains() const;

 private:
  struct Zone {
    int file = -1;           // energy_uj
    std::uint64_t most = 0;  // max_energy_range_uj: the counter starts again after it
    std::uint64_t last = 0;  // microjoules
  };
  struct Domain {
    Domain() = default;
    ~Domain() { close(); }
    Domain(const Domain&) = delete;
    Domain& operator=(const Domain&) = delete;
    void open(const std::string& zone);
    void close();
    std::optional<double> take();

    std::vector<Zone> zones;
    std::string problem;   // why nothing is known, "" where it is, or where there is nothing
    bool started = false;  // every zone has a last reading
  };

  std::string root_;
  Domain package_, memory_;
  DeviceEnergy devices_;
  bool counted_ = false;  // there are zones, all of which are readable
};

}  // namespace sestina
