// `sestina info`: shows what this program is made of and what it runs on.
#include <H5public.h>
#include <link.h>
#include <spdlog/version.h>
#include <unistd.h>
#include <CLI/Version.hpp>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/command/verbs.hpp"
#include "app/start/kokkos_session.hpp"
#include "app/start/memory_check.hpp"
#include "app/start/rank_run.hpp"
#include "app/watch/speed_check.hpp"
#include "io/store/chunk_engine.hpp"
#include "kernels/base/version.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/instruction_set.hpp"
#include "kernels/model/device/attention_fused.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.find(": ") + 2, line.size()));
  return "unknown";
}

// Returns the files of the shared libraries that do this program's work, as loaded: their names carry the versions.
std::vector<std::string> loaded_libraries() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* out) {
        char path[PATH_MAX];
        if (library->dlpi_name[0] == '/' && realpath(library->dlpi_name, path))
          static_cast<std::vector<std::string>*>(out)->push_back(path);
        return 0;
      },
      &names);
  std::erase_if(names, [](const std::string& path) {
    const std::string file = path.substr(path.rfind('/') + 1);
    static constexpr const char* ours[] = {"libdnnl",   "libopenblas", "libblas",         "liblapack", "libgomp",
                                           "libkokkos", "libhdf5",     "libtomlplusplus", "libpcre2",  "libutf8proc",
                                           "libxxhash", "libfmt",      "libspdlog",       "libcublas", "libcuda",
                                           "libcudart", "libcusolver", "libnccl",         "libmpi",    "liburing"};
    return std::none_of(std::begin(ours), std::end(ours),
                        [&](const char* prefix) { return file.rfind(prefix, 0) == 0; });
  });
  std::sort(names.begin(), names.end());
  return names;
}

std::string three(int major, int minor, int patch) { return fmt::format("{}.{}.{}", major, minor, patch); }

Json header_versions() {
  const int f = FMT_VERSION;
  return {
      {"Kokkos", three(KOKKOS_VERSION / 10000, KOKKOS_VERSION / 100 % 100, KOKKOS_VERSION % 100)},
      {"HDF5", three(H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE)},
      {"fmt", three(f / 10000, f / 100 % 100, f % 100)},
      {"spdlog", three(SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH)},
      {"nlohmann-json", three(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"CLI11", CLI11_VERSION}};
}

// Returns what Kokkos says of the device space: names and memory of the devices that it sees.
std::vector<std::string> device_lines() {
  std::ostringstream text;
  Device().print_configuration(text, true);
  std::vector<std::string> lines;
  std::istringstream in(text.str());
  for (std::string line; std::getline(in, line);)
    if (line.find_first_not_of(" \t") != line.npos) lines.push_back(line);
  return lines;
}

Json collect(const InfoArguments& arguments) {
  Json info = {{"version", version().text},
               {"commit", version().commit},
               {"build_type", version().build_type},
               {"compiler", version().compiler}};
  info["cpu"] = {{"model", cpu_model()},
                 {"instruction_set", instruction_set()},
                 {"bf16", to_text(bf16_way())},
                 {"bf16_products", has_bf16_products(bf16_way())},
                 {"cores", available_cores()}};
  info["memory_available_bytes"] = available_memory_bytes();
  constexpr bool has_device = !std::is_same_v<Host, Device>;
  try {
    const KokkosSession kokkos(0, arguments.kokkos);
    info["spaces"] = {{"host", Host::name()}, {"device", Device::name()}};
    info["threads"] = threads_of(Host());
    info["devices"] = has_device ? Json(device_lines()) : Json::array();
    if (has_device) info["attention"] = fused_attention::description();
  } catch (const Error& error) {
    info["spaces"] = {{"host", Host::name()}, {"device", Device::name()}};
    info["devices"] = Json::array();
    info["problem"] = error.what();
  }
  info["ranks"] = 1;
  info["mpi"] = {{"library", ranks::library()}, {"reads_device_memory", ranks::reads_device_memory()}};
  info["nccl"] = nccl_version();
  info["io_uring"] = chunk_ring_compiled();
  info["built_with"] = header_versions();
  info["libraries"] = loaded_libraries();
  return info;
}

void print_value(const std::string& name, const Json& value) {
  const auto text = [](const Json& v) { return v.is_string() ? v.get<std::string>() : v.dump(); };
  if (value.is_array() && value.empty()) {
    fmt::print("{:28}none\n", name);
  } else if (value.is_array()) {
    std::string label = name;
    for (const auto& item : value) {
      fmt::print("{:28}{}\n", label, text(item));
      label.clear();
    }
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) print_value(name + " " + key, item);
  } else {
    fmt::print("{:28}{}\n", name, text(value));
  }
}

}  // namespace

namespace {

Json to_json(const std::vector<RankSpeed>& ranks) {
  Json list = Json::array();
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    Json entry = {{"rank", r}, {"host", ranks[r].host}};
    for (const Rate& rate : rates) {
      const double now = ranks[r].now.*rate.value, record = ranks[r].record.*rate.value;
      entry[rate.key] = now > 0 ? Json(now) : Json();
      entry[std::string(rate.key) + "_record"] = record > 0 ? Json(record) : Json();
    }
    list.push_back(entry);
  }
  return {{"ranks", list}, {"slow", slow_lines(ranks)}};
}

void print_speed(const std::vector<RankSpeed>& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const Rate& rate : rates) {
      const double now = ranks[r].now.*rate.value, record = ranks[r].record.*rate.value;
      if (now == 0) continue;
      fmt::print("rank {} on {}: {:22} {:8.3g} {:8} {}\n", r, ranks[r].host, rate.what, now, rate.unit,
                 record > 0 ? fmt::format("{:.0f} % of the node's record of {:.3g}", 100 * now / record, record)
                            : "no record yet");
    }
  for (const std::string& line : slow_lines(ranks)) fmt::print("slow: {}\n", line);
}

// Measures the machine. A slow one is no error: what follows is the reader's to decide.
int run_speed(const InfoArguments& arguments, Runtime& runtime) {
  warn_on_stderr(runtime);
  const auto session = start_kokkos(runtime, 0, arguments.kokkos, 0);
  runtime.begin_phase("measuring the machine");
  const std::vector<RankSpeed> ranks = check_speed(RunOptions::Space::device, runtime);
  if (!runtime.is_first()) return 0;
  if (arguments.json)
    fmt::print("{}\n", to_json(ranks).dump(2));
  else
    print_speed(ranks);
  return 0;
}

}  // namespace

int run_info(const InfoArguments& arguments, const RankSource& source) {
  if (arguments.speed) {
    Runtime runtime(source, RunOptions().start_timeout);
    return run_on_ranks(runtime, [&] { return run_speed(arguments, runtime); });
  }
  const Json info = collect(arguments);
  if (arguments.json) {
    fmt::print("{}\n", info.dump(2));
    return static_cast<int>(ExitCode::done);
  }
  for (const auto& [key, value] : info.items()) print_value(key, value);
  return static_cast<int>(ExitCode::done);
}

}  // namespace sestina
