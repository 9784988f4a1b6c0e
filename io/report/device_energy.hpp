// Energy that devices have taken, as NVIDIA's management library counts it (nvmlDeviceGetTotalEnergyConsumption,
// millijoules since its driver was loaded). The library is loaded when the program runs, where there is one: no build
// needs it. A reading allocates nothing. No Kokkos.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sestina {

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
  // Of all devices since the last call; at the first one, and where one of two readings failed, not known.
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

}  // namespace sestina
