#include "app/watch/node_record.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/store/output_file.hpp"
#include "kernels/base/host_name.hpp"

namespace sestina {

std::string record_file(const std::string& kind) {
  const auto folder = [](const char* variable) {
    const char* value = std::getenv(variable);
    return value == nullptr ? std::string() : std::string(value);
  };
  const std::string cache = folder("XDG_CACHE_HOME"), home = folder("HOME");
  if (cache.empty() && home.empty()) return "";
  return (cache.empty() ? home + "/.cache" : cache) + "/sestina/" + kind + "/" + host_name() + ".json";
}

nlohmann::ordered_json read_record_file(const std::string& file) {
  std::ifstream in(file);
  nlohmann::ordered_json record = nlohmann::ordered_json::parse(in, nullptr, false);
  return record.is_discarded() ? nlohmann::ordered_json() : record;
}

bool write_record_file(const std::string& file, const nlohmann::ordered_json& record) {
  try {
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    write_output_file(file, record.dump(2) + "\n");
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace sestina
