#include "app/watch/kernel_checks.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/watch/speed_check.hpp"
#include "core/machine_speed.hpp"
#include "io/store/output_file.hpp"
#include "kernels/base/device_memory.hpp"
#include "kernels/base/host_name.hpp"
#include "kernels/base/version.hpp"
#include "kernels/blas/instruction_set.hpp"
#include "parallel/stage/kernel_checks.hpp"

namespace fs = std::filesystem;

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

bool on_host(const Options& options) { return memory_in(options.run.space) == MemorySpace::host; }
std::string machine_of(const Options& options) { return on_host(options) ? instruction_set() : device_identity(); }

// An infinite error has no number in JSON: it is null there.
Json packed(const KernelCheck& c) {
  return {c.kernel,  c.shape, c.output, std::isfinite(c.error) ? Json(c.error) : Json(), c.bound, c.repeats,
          c.seconds, c.flops, c.bytes};
}
KernelCheck unpacked(const Json& j) {
  return {j[0], j[1], j[2], j[3].is_null() ? std::numeric_limits<double>::infinity() : j[3].get<double>(), j[4], j[5],
          j[6], j[7], j[8]};
}

// What the results of the checks depend on: machine, build, and the sizes of the model. Two builds of one commit differ
// in the time of the program's file.
std::string key_of(const Options& options) {
  std::error_code none;
  const auto built = fs::last_write_time("/proc/self/exe", none).time_since_epoch().count();
  const ModelConfig& m = options.model;
  return fmt::format("{}; sestina {} {} {} {}; {} {} {} {} {} {} {} {} {}", machine_of(options), version().text,
                     version().commit, version().compiler, none ? 0 : built, m.hidden_size, m.intermediate_size,
                     m.num_attention_heads, m.num_key_value_heads, m.head_dim, m.vocab_size,
                     options.data.sequence_length, options.train.micro_batch,
                     options.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32");
}

Json read_keys(const std::string& file) {
  std::ifstream in(file);
  const Json keys = Json::parse(in, nullptr, false);
  return keys.is_array() ? keys : Json::array();
}

}  // namespace

std::vector<RankChecks> check_ranks(const Options& options, Runtime& runtime) {
  RankChecks own{host_name(), machine_of(options), !computes_nothing(device_identity()) || on_host(options), {}};
  runtime.together([&] { own.checks = check_kernels(options); });
  for (KernelCheck& check : check_exchanges(options, runtime.world())) own.checks.push_back(std::move(check));
  Json list = Json::array();
  for (const KernelCheck& check : own.checks) list.push_back(packed(check));
  std::vector<RankChecks> all;
  for (const std::string& text :
       runtime.world().all_gather(Json{own.host, own.machine, own.judged, std::move(list)}.dump())) {
    const Json json = Json::parse(text);
    RankChecks rank{json[0], json[1], json[2], {}};
    for (const Json& check : json[3]) rank.checks.push_back(unpacked(check));
    all.push_back(std::move(rank));
  }
  return all;
}

std::vector<std::string> wrong_kernels(const std::vector<RankChecks>& ranks) {
  std::vector<std::string> lines;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    for (const std::string& line : ranks[r].judged ? wrong_kernels(ranks[r].checks) : std::vector<std::string>())
      lines.push_back(fmt::format("rank {} on {} ({}): {}", r, ranks[r].host, ranks[r].machine, line));
  return lines;
}

bool is_remembered(const std::string& file, const std::string& key) {
  const Json keys = read_keys(file);
  return std::find(keys.begin(), keys.end(), Json(key)) != keys.end();
}

bool remember_check(const std::string& file, const std::string& key) {
  constexpr std::size_t most_keys = 64;  // the oldest go
  Json keys = read_keys(file);
  keys.push_back(key);
  if (keys.size() > most_keys) keys.erase(keys.begin());
  try {
    fs::create_directories(fs::path(file).parent_path());
    write_output_file(file, keys.dump(2) + "\n");
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void check_kernels_at_start(const Options& options, Runtime& runtime) {
  if (options.run.check == RunOptions::Check::off) return;
  const std::string file = record_file("check"), key = key_of(options);
  if (options.run.check == RunOptions::Check::first) {
    if (on_host(options)) return;
    // One device that is not known is reason enough for all: ranks check together.
    double unknown = file.empty() || !is_remembered(file, key) ? 1 : 0;
    runtime.world().all_reduce(&unknown, 1, Reduction::max);
    if (unknown == 0) return;
  }
  const std::vector<RankChecks> ranks = check_ranks(options, runtime);
  const std::vector<std::string> wrong = wrong_kernels(ranks);
  runtime.together([&] {
    if (!wrong.empty())
      fail(ExitCode::unavailable, "kernels that are wrong on this machine (run.check): {}", fmt::join(wrong, "; "));
  });
  const RankChecks& own = ranks[static_cast<std::size_t>(runtime.rank())];
  spdlog::info("kernels    {} checks on {} hold{}", own.checks.size(), own.machine,
               own.judged ? "" : ", of which nothing was computed");
  if (runtime.is_first_of_node() && !file.empty()) remember_check(file, key);
}

}  // namespace sestina
