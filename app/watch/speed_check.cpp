#include "app/watch/speed_check.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/start/kokkos_session.hpp"
#include "app/watch/node_record.hpp"
#include "core/machine_speed.hpp"
#include "kernels/base/host_name.hpp"
#include "kernels/blas/exec.hpp"
#include "parallel/stage/exchange_rate.hpp"

namespace sestina {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Speed& speed) {
  Json json;
  for (const Rate& rate : rates) json[rate.key] = speed.*rate.value;
  return json;
}

Speed speed_of(const Json& json) {
  Speed speed;
  for (const Rate& rate : rates) speed.*rate.value = json.value(rate.key, 0.0);
  return speed;
}

Json read_records(const std::string& file) {
  Json records = read_record_file(file);
  return records.is_object() ? records : Json::object();
}

Speed record_in(const Json& records, const std::string& set_up) {
  const auto found = records.find(set_up);
  return found != records.end() && found->is_object() ? speed_of(*found) : Speed();
}

Speed best_of(const Speed& a, const Speed& b) {
  Speed best;
  for (const Rate& rate : rates) best.*rate.value = std::max(a.*rate.value, b.*rate.value);
  return best;
}

double median_of(const std::vector<RankSpeed>& ranks, const Rate& rate) {
  std::vector<double> values;
  for (const RankSpeed& rank : ranks) values.push_back(rank.now.*rate.value);
  return median(std::move(values));
}

Speed measure_speed(RunOptions::Space space, Communicator& world) {
  world.barrier();  // all ranks of a node multiply at a time
  const MachinePeak peak = measure_machine_peak(space);
  Speed speed{peak.gemm_bf16_tflops.value_or(0), peak.gemm_fp32_tflops, peak.memory_gbs};
  if (world.size() > 1) speed.link_gbs = exchange_gbs(space, world);
  return speed;
}

}  // namespace

std::vector<std::string> slow_lines(const std::vector<RankSpeed>& ranks) {
  std::vector<std::string> lines;
  for (const Rate& rate : rates) {
    const double middle = median_of(ranks, rate);
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const double now = ranks[r].now.*rate.value, record = ranks[r].record.*rate.value;
      const bool below_record = now < slow_share * record;
      if (!below_record && now >= slow_share * middle) continue;
      const double best = below_record ? record : middle;
      lines.push_back(fmt::format("rank {} on {}: {} {:.3g} {}, {:.0f} % of {} {:.3g} {}", r, ranks[r].host, rate.what,
                                  now, rate.unit, 100 * now / best,
                                  below_record ? "the node's record of" : "the ranks' median of", best, rate.unit));
    }
  }
  return lines;
}

Speed read_record(const std::string& file, const std::string& set_up) { return record_in(read_records(file), set_up); }

bool raise_record(const std::string& file, const std::string& set_up, const Speed& now) {
  Json records = read_records(file);
  records[set_up] = to_json(best_of(record_in(records, set_up), now));
  return write_record_file(file, records);
}

std::vector<RankSpeed> check_speed(RunOptions::Space space, Runtime& runtime) {
  Communicator& world = runtime.world();
  const Speed mine = measure_speed(space, world);
  const std::string file = record_file("speed");
  const std::string set_up =
      fmt::format("{}, {} of the node's ranks, {} threads each",
                  memory_in(space) == MemorySpace::host ? "host" : "device", runtime.node_ranks(), threads_of(Host()));
  RankSpeed own{host_name(), mine, file.empty() ? Speed() : read_record(file, set_up)};
  std::vector<RankSpeed> all;
  for (const std::string& text :
       world.all_gather(Json{{"host", own.host}, {"now", to_json(own.now)}, {"record", to_json(own.record)}}.dump())) {
    const Json json = Json::parse(text);
    all.push_back({json["host"], speed_of(json["now"]), speed_of(json["record"])});
  }
  if (!runtime.is_first_of_node() || file.empty()) return all;
  Speed best;
  for (const RankSpeed& rank : all)
    if (rank.host == own.host) best = best_of(best, rank.now);
  raise_record(file, set_up, best);
  return all;
}

std::vector<std::string> check_speed(const RunOptions& run, Runtime& runtime) {
  if (run.check_speed == RunOptions::CheckSpeed::off) return {};
  const std::vector<RankSpeed> ranks = check_speed(run.space, runtime);
  std::string text;
  for (const Rate& rate : rates) {
    const auto least = std::min_element(ranks.begin(), ranks.end(), [&](const RankSpeed& a, const RankSpeed& b) {
      return a.now.*rate.value < b.now.*rate.value;
    });
    if (least->now.*rate.value > 0)
      text += fmt::format("{}{} {:.3g} {}", text.empty() ? "" : ", ", rate.what, least->now.*rate.value, rate.unit);
  }
  spdlog::info("speed      {}", text);
  const std::vector<std::string> slow = slow_lines(ranks);
  if (!slow.empty() && run.check_speed == RunOptions::CheckSpeed::stop)
    runtime.together([&] { fail(ExitCode::unavailable, "run.check_speed = \"stop\": {}", fmt::join(slow, "; ")); });
  return slow;
}

}  // namespace sestina
