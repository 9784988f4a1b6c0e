#include "app/watch/first_bad_search.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "io/store/finite.hpp"
#include "io/store/output_file.hpp"

namespace sestina {
namespace {

// JSON has no word for what is not finite.
std::string value_text(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

void keep_first(std::optional<FirstBadOfRanks>& first, const FirstBadOfRanks& found) {
  if (!first || std::pair(order_of(found.bad), found.rank) < std::pair(order_of(first->bad), first->rank))
    first = found;
}

}  // namespace

std::tuple<PassKind, int, int, int> order_of(const FirstBad& bad) {
  return {bad.pass, bad.pass == PassKind::backward ? -bad.stage : bad.stage, bad.micro, bad.place};
}

const char* pass_name(PassKind pass) {
  constexpr const char* names[] = {"forward", "loss", "backward"};
  return names[static_cast<int>(pass)];
}

const char* pass_text(PassKind pass) {
  constexpr const char* names[] = {"forward pass", "loss", "backward pass"};
  return names[static_cast<int>(pass)];
}

void write_place(const std::string& path, const nlohmann::json& json) try {
  write_output_file(path, json.dump(1) + "\n");
} catch (const Error& error) {
  spdlog::warn("{}", error.what());
}

nlohmann::json to_json(const FirstBad& bad) {
  return {{"pass", static_cast<int>(bad.pass)},
          {"stage", bad.stage},
          {"layer", bad.layer},
          {"tensor", bad.tensor},
          {"micro", bad.micro},
          {"sequence", bad.sequence},
          {"place", bad.place},
          {"value", value_text(bad.value)}};
}

FirstBad first_bad_from(const nlohmann::json& json) {
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

namespace {

// Returns what the stages of this rank found, with the sample that it belongs to.
std::string found_here(Executor& executor, int rank, std::uint64_t first_sample) {
  std::optional<FirstBadOfRanks> first;
  for (const PipelineStage* stage : executor.runs())
    if (const std::optional<FirstBad> bad = stage->first_nonfinite()) keep_first(first, {*bad, rank, std::nullopt});
  if (!first) return "";
  nlohmann::json json = to_json(first->bad);
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
    FirstBadOfRanks found{first_bad_from(json), static_cast<int>(rank), std::nullopt};
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
  std::string text =
      fmt::format("first in the {}: {} of {} is {} (rank {}, stage {}, micro-batch {}", pass_text(bad.pass), bad.tensor,
                  bad.layer, value_text(bad.value), found.rank, bad.stage, bad.micro);
  if (found.sample) text += fmt::format(", sample {}", *found.sample);
  return text + ")";
}

void write_first_bad(const std::string& run_dir, std::int64_t step, const std::optional<FirstBadOfRanks>& found,
                     const std::string& text) {
  nlohmann::json json{{"step", step}, {"text", text}};
  if (found) {
    const FirstBad& bad = found->bad;
    json.update({{"pass", pass_name(bad.pass)},
                 {"layer", bad.layer},
                 {"tensor", bad.tensor},
                 {"value", value_text(bad.value)},
                 {"rank", found->rank},
                 {"stage", bad.stage},
                 {"micro_batch", bad.micro}});
    json["sample"] = found->sample ? nlohmann::json(*found->sample) : nlohmann::json();
  }
  write_place(run_dir + "/first_nonfinite.json", json);
}

}  // namespace sestina
