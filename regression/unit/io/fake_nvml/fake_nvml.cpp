// Stands for NVIDIA's management library in tests: devices whose millijoules lie in files
// $FAKE_NVML/<bus id with "_" for ":">. A device without a file is not there; one whose file holds no number fails.
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>

namespace {

std::map<std::string, std::unique_ptr<std::string>> devices;  // handles are their paths

constexpr int success = 0, not_initialised = 1, not_found = 6, unknown = 999;
int users = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() {
  ++users;
  return std::getenv("FAKE_NVML") != nullptr ? success : unknown;
}

int nvmlShutdown() {
  if (users == 0) return not_initialised;
  --users;
  return success;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  if (users == 0) return not_initialised;
  std::string path = id;
  for (char& c : path)
    if (c == ':') c = '_';
  path = std::getenv("FAKE_NVML") + ("/" + path);
  if (!std::ifstream(path)) return not_found;
  auto& known = devices[path];
  if (!known) known = std::make_unique<std::string>(path);
  *device = known.get();
  return success;
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* energy) {
  if (users == 0) return not_initialised;
  std::ifstream file(*static_cast<std::string*>(device));
  return file >> *energy ? success : unknown;
}

}  // extern "C"
