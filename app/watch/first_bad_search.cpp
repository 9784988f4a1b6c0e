#include "app/watch/first_bad_search.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "io/store/finite.hpp"
#include "io/store/output_file.hpp"

namespace sestina {
namespace {

constexpr std::array<const char*, 3> pass_names = {"forward", "loss", "backward"};

// JSON has no word for what is not finite.
std::string value_text(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

// Stages compute one after the other, backward in the opposite order. Ranks of a stage compute the same places.
auto order_of(const FirstBadOfRanks& found) {
  const FirstBad& bad = found.bad;
  const int stage = bad.pass == PassKind::backward ? -bad.stage : bad.stage;
  return std::tuple(bad.pass, stage, bad.micro, bad.place, found.rank);
}

void keep_first(std::optional<FirstBadOfRanks>& first, const FirstBadOfRanks& found) {
  if (!first || order_of(found) < order_of(*first)) first = found;
}

nlohmann::json bad_json(const FirstBad& bad) {
  return {{"pass", static_cast<int>(bad.pass)},
          {"stage", bad.stage},
          {"layer", bad.layer},
          {"tensor", bad.tensor},
          {"micro", bad.micro},
          {"sequence", bad.sequence},
          {"place", bad.place},
          {"value", value_text(bad.value)}};
}

FirstBad bad_from(const nlohmann::json& json) {
  FirstBad bad;
  bad.pass = static_cast<PassKind>(json.at("pass").get<int>());
  bad.stage = json.at("stage");
  bad.layer = json.at("layer");
  bad.tensor = json.at("tensor");
  bad.micro = json.at("micro");
  bad.sequence = json.at("sequence");
  bad.place = json.at("place");
  const std::string value = json.at("value");
  bad.value = value == "nan" ? std::nan("") : value == "inf" ? HUGE_VAL : -HUGE_VAL;
  return bad;
}

// Returns what the stages of this rank found, with the sample that it belongs to.
std::string found_here(Executor& executor, int rank, std::uint64_t first_sample) {
  std::optional<FirstBadOfRanks> first;
  for (const PipelineStage* stage : executor.runs())
    if (const std::optional<FirstBad> bad = stage->first_nonfinite()) keep_first(first, {*bad, rank, std::nullopt});
  if (!first) return "";
  nlohmann::json json = bad_json(first->bad);
  const BatchShare& share = executor.share();
  if (first->bad.sequence >= 0)
    json["sample"] =
        first_sample +
        static_cast<std::uint64_t>(share.micro_batch) * static_cast<std::uint64_t>(share.number(first->bad.micro)) +
        static_cast<std::uint64_t>(first->bad.sequence);
  return json.dump();
}

}  // namespace

std::optional<FirstBadOfRanks> search_passes(Executor& executor, Communicator& world, std::uint64_t first_sample,
                                             const std::function<void()>& run_passes) {
  for (PipelineStage* stage : executor.runs()) stage->look_for_nonfinite(true);
  run_passes();
  const std::vector<std::string> all = world.all_gather(found_here(executor, world.rank(), first_sample));
  for (PipelineStage* stage : executor.runs()) stage->look_for_nonfinite(false);
  std::optional<FirstBadOfRanks> first;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const nlohmann::json json = nlohmann::json::parse(all[rank]);
    FirstBadOfRanks found{bad_from(json), static_cast<int>(rank), std::nullopt};
    if (json.contains("sample")) found.sample = json["sample"].get<std::uint64_t>();
    keep_first(first, found);
  }
  return first;
}

std::string search_weights(const Executor& executor, Communicator& world) {
  std::string mine;
  std::vector<std::byte> host;
  for (const StateField& field : executor.model_fields()) {
    for_each_rows(field, [&](const StateField& rows) {
      if (!mine.empty()) return;
      host.resize(rows.bytes());
      executor.copy_to_host(rows, host.data());
      const std::optional<std::size_t> at = first_nonfinite(rows.dtype, host.data(), rows.bytes());
      if (at) mine = nonfinite_text(rows, host.data() + *at * size_of(rows.dtype), *at);
    });
    if (!mine.empty()) break;
  }
  const std::vector<std::string> all = world.all_gather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (!all[rank].empty()) return fmt::format("{} (rank {})", all[rank], rank);
  return "";
}

std::string to_text(const FirstBadOfRanks& found) {
  const FirstBad& bad = found.bad;
  const char* where[] = {"forward pass", "loss", "backward pass"};
  std::string text = fmt::format("first in the {}: {} of {} is {} (rank {}, stage {}, micro-batch {}",
                                 where[static_cast<int>(bad.pass)], bad.tensor, bad.layer, value_text(bad.value),
                                 found.rank, bad.stage, bad.micro);
  if (found.sample) text += fmt::format(", sample {}", *found.sample);
  return text + ")";
}

void write_first_bad(const std::string& run_dir, std::int64_t step, const std::optional<FirstBadOfRanks>& found,
                     const std::string& text) try {
  nlohmann::json json{{"step", step}, {"text", text}};
  if (found) {
    const FirstBad& bad = found->bad;
    json.update({{"pass", pass_names[static_cast<std::size_t>(bad.pass)]},
                 {"layer", bad.layer},
                 {"tensor", bad.tensor},
                 {"value", value_text(bad.value)},
                 {"rank", found->rank},
                 {"stage", bad.stage},
                 {"micro_batch", bad.micro}});
    json["sample"] = found->sample ? nlohmann::json(*found->sample) : nlohmann::json();
  }
  write_output_file(run_dir + "/first_nonfinite.json", json.dump(1) + "\n");
} catch (const Error& error) {
  spdlog::warn("{}", error.what());
}

}  // namespace sestina
