#include "app/watch/kernel_checks.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "app/watch/node_record.hpp"
#include "core/machine_speed.hpp"
#include "kernels/base/device_memory.hpp"
#include "kernels/base/host_name.hpp"
#include "kernels/base/version.hpp"
#include "kernels/blas/instruction_set.hpp"
#include "kernels/model/device/attention_fused.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/stage/kernel_checks.hpp"

namespace sestina {

bool may_have_attention(const Options& options) {
  return memory_in(options.run.space) != MemorySpace::host && options.train.precision == TrainOptions::Precision::bf16;
}

namespace {

using Json = nlohmann::ordered_json;

bool on_host(const Options& options) { return memory_in(options.run.space) == MemorySpace::host; }
// Whether a first start on this machine checks its kernels: on a device, unless it is one of tests, which computes
// nothing.
bool checks_first_start(const Options& options) { return !on_host(options) && !computes_nothing(device_identity()); }
std::string machine_of(const Options& options) { return on_host(options) ? instruction_set() : device_identity(); }

// What decides which kernels are checked, on which shapes, and what they compute: machine, build, ranks, and of the
// deck its model and type. Two builds of one commit differ in the time of the program's file.
std::string key_of(const Options& options, int ranks) {
  std::error_code none;
  const auto built = std::filesystem::last_write_time("/proc/self/exe", none).time_since_epoch().count();
  const ModelConfig& m = options.model;
  const std::int64_t numbers[] = {static_cast<std::int64_t>(m.family),
                                  static_cast<std::int64_t>(m.norm),
                                  static_cast<std::int64_t>(m.position),
                                  m.hidden_size,
                                  m.intermediate_size,
                                  m.num_attention_heads,
                                  m.num_key_value_heads,
                                  m.head_dim,
                                  m.vocab_size,
                                  m.num_experts,
                                  m.num_experts_per_tok,
                                  m.moe_intermediate_size,
                                  options.data.sequence_length,
                                  options.train.micro_batch,
                                  options.run.deterministic,
                                  ranks};
  return fmt::format("{}; {}; sestina {} {} {} {}; {} {} {}", machine_of(options),
                     may_have_attention(options) ? fused_attention::description() : "", version().text,
                     version().commit, version().compiler, none ? 0 : built, m.hidden_act, fmt::join(numbers, " "),
                     options.train.precision == TrainOptions::Precision::bf16 ? "bf16" : "fp32");
}

Json read_keys(const std::string& file) {
  Json keys = read_record_file(file);
  return keys.is_array() ? keys : Json::array();
}

// An infinite error has no number in JSON: it is null there.
KernelCheck check_from(const Json& j) {
  const Json& error = j.at("error");
  return {j.at("kernel"),  j.at("shape"),
          j.at("output"),  error.is_null() ? std::numeric_limits<double>::infinity() : error.get<double>(),
          j.at("bound"),   j.at("repeats"),
          j.at("seconds"), j.at("flops"),
          j.at("bytes")};
}

// A library of a device whose work something else can do.
struct Library {
  std::string what, name, other;     // "attention is", "cuDNN 9.1", "our own kernels"
  std::vector<std::string> kernels;  // names of checks begin with one of these
  std::function<bool()> leave;       // from now on `other` does it; false: the library does not on this rank
};

std::vector<Library> libraries(const Options& options, Runtime& runtime) {
  std::vector<Library> all;
  if (may_have_attention(options))
    all.push_back({"attention is", fused_attention::description(), "our own kernels", {"attention"}, [] {
                     const bool in_use = fused_attention::is_in_use();
                     if (in_use) fused_attention::leave_to_rows("the library's were wrong here (run.check)");
                     return in_use;
                   }});
  if (on_host(options)) return all;
  all.push_back({"decompositions are", "cuSOLVER", "LAPACK on the host", {"eigh", "qr"}, [] {
                   return leave_decompositions_to_host();
                 }});
  all.push_back({"what ranks send each other is",
                 "NCCL " + nccl_version(),
                 "MPI",
                 {"gather of ranks", "sum of ranks"},
                 [&runtime] { return leave_to_host(runtime.world()); }});
  return all;
}

std::vector<std::string> wrong_kernels_of(const Library& library, std::vector<RankChecks> ranks) {
  for (RankChecks& rank : ranks)
    std::erase_if(rank.checks, [&](const KernelCheck& check) {
      return std::none_of(library.kernels.begin(), library.kernels.end(),
                          [&](const std::string& name) { return check.kernel.starts_with(name); });
    });
  return wrong_kernels(ranks);
}

// Leaves the work of libraries that are wrong on any rank to what else can do it, on all of them. Returns whether there
// was such a library. Collective.
bool leave_wrong_libraries(const Options& options, Runtime& runtime, const std::vector<RankChecks>& ranks) {
  bool left = false;
  for (const Library& library : libraries(options, runtime)) {
    const std::vector<std::string> wrong = wrong_kernels_of(library, ranks);
    if (wrong.empty()) continue;
    double any = library.leave() ? 1 : 0;
    runtime.world().all_reduce(&any, 1, Reduction::max);
    if (any == 0) continue;
    left = true;
    if (runtime.is_first())
      spdlog::warn("{} wrong on this machine by {}, and left to {}: {}", library.what, library.name, library.other,
                   fmt::join(wrong, "; "));
  }
  return left;
}

}  // namespace

Json to_json(const KernelCheck& c) {
  return {{"kernel", c.kernel},   {"shape", c.shape},
          {"output", c.output},   {"error", std::isfinite(c.error) ? Json(c.error) : Json()},
          {"bound", c.bound},     {"repeats", c.repeats},
          {"seconds", c.seconds}, {"flops", c.flops},
          {"bytes", c.bytes}};
}

std::vector<RankChecks> check_ranks(const Options& options, Runtime& runtime) {
  RankChecks own{host_name(), machine_of(options), !computes_nothing(device_identity()) || on_host(options), {}};
  runtime.together([&] { own.checks = check_kernels(options); });
  for (KernelCheck& check : check_exchanges(options, runtime.world())) own.checks.push_back(std::move(check));
  Json list = Json::array();
  for (const KernelCheck& check : own.checks) list.push_back(to_json(check));
  std::vector<RankChecks> all;
  for (const std::string& text : runtime.world().all_gather(
           Json{{"host", own.host}, {"machine", own.machine}, {"judged", own.judged}, {"checks", list}}.dump())) {
    const Json json = Json::parse(text);
    RankChecks rank{json["host"], json["machine"], json["judged"], {}};
    for (const Json& check : json["checks"]) rank.checks.push_back(check_from(check));
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
  return write_record_file(file, keys);
}

void check_kernels_at_start(const Options& options, Runtime& runtime) {
  const bool first = options.run.check == RunOptions::Check::first;
  if (options.run.check == RunOptions::Check::off || (first && !checks_first_start(options))) return;
  const std::string file = record_file("check"), key = key_of(options, runtime.size());
  if (first) {
    // One device that is not known is reason enough for all: ranks check together.
    double unknown = file.empty() || !is_remembered(file, key) ? 1 : 0;
    runtime.world().all_reduce(&unknown, 1, Reduction::max);
    if (unknown == 0) return;
  }
  std::vector<RankChecks> ranks = check_ranks(options, runtime);
  const bool left = leave_wrong_libraries(options, runtime, ranks);
  if (left) ranks = check_ranks(options, runtime);
  const std::vector<std::string> wrong = wrong_kernels(ranks);
  runtime.together([&] {
    if (!wrong.empty())
      fail(ExitCode::unavailable, "kernels that are wrong on this machine (run.check): {}", fmt::join(wrong, "; "));
  });
  const RankChecks& own = ranks[static_cast<std::size_t>(runtime.rank())];
  spdlog::info("kernels    {} checks on {} hold{}", own.checks.size(), own.machine,
               own.judged ? "" : ", of which nothing was computed");
  if (left) return;  // the next start finds that out again
  if (runtime.is_first_of_node() && !file.empty()) remember_check(file, key);
}

}  // namespace sestina
