#include "app/audit/first_difference.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "app/watch/first_bad_search.hpp"

namespace sestina {
namespace {

// What comes again is known better than what does not.
auto order_of(const FirstDifference& difference) {
  return std::tuple_cat(std::tuple(!difference.comes_again), order_of(difference.at), std::tuple(difference.ranks));
}

std::string text_of(const FirstDifference& difference) {
  nlohmann::json json = to_json(difference.at);
  json["ranks"] = difference.ranks;
  json["first_sample"] = difference.first_sample;
  json["last_sample"] = difference.last_sample;
  json["comes_again"] = difference.comes_again;
  return json.dump();
}

FirstDifference difference_from(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {first_bad_from(json), json.at("ranks"), json.at("first_sample"), json.at("last_sample"),
          json.at("comes_again")};
}

FirstBad bad_at(const PassDigest& digest, std::size_t number, std::size_t sequence) {
  FirstBad bad;
  bad.pass = digest.pass;
  bad.stage = digest.stage;
  bad.layer = digest.layer;
  bad.tensor = digest.tensor;
  bad.sequence = digest.by_sequence ? static_cast<int>(sequence) : -1;
  bad.place = static_cast<int>(number);
  return bad;
}

}  // namespace

std::optional<FirstDifference> first_difference(const ReplicaResults& results, std::size_t replica,
                                                const std::vector<PassDigest>& digests) {
  std::size_t i = 0;
  for (std::size_t number = 0; number < digests.size(); ++number)
    for (std::size_t sequence = 0; sequence < digests[number].digests.size(); ++sequence, ++i) {
      const AuditVerdict verdict = results.verdict(replica, i);
      if (verdict.kind == AuditVerdict::Kind::equal) continue;
      return FirstDifference{bad_at(digests[number], number, sequence), verdict.ranks};
    }
  return std::nullopt;
}

FirstBad place_of_gradient(const std::vector<PassDigest>& digests, const std::string& tensor) {
  const std::string name = "gradient of " + tensor;
  for (std::size_t number = 0; number < digests.size(); ++number)
    if (digests[number].tensor == name) return bad_at(digests[number], number, 0);
  FirstBad bad;
  bad.pass = PassKind::backward;
  bad.tensor = name;
  return bad;
}

void keep_first(std::optional<FirstDifference>& first, const std::optional<FirstDifference>& found) {
  if (found && (!first || order_of(*found) < order_of(*first))) first = found;
}

std::optional<FirstDifference> first_of_ranks(Communicator& world, const std::optional<FirstDifference>& mine) {
  std::optional<FirstDifference> first;
  for (const std::string& text : world.all_gather(mine ? text_of(*mine) : std::string()))
    if (!text.empty()) keep_first(first, difference_from(text));
  return first;
}

std::string to_text(const FirstDifference& difference) {
  const FirstBad& at = difference.at;
  const std::string samples = difference.first_sample == difference.last_sample
                                  ? fmt::format("sample {}", difference.first_sample)
                                  : fmt::format("samples {} to {}", difference.first_sample, difference.last_sample);
  constexpr std::string_view gradient = "gradient of ";
  const bool of_weight = at.tensor.starts_with(gradient) && at.sequence < 0;
  const std::string where = fmt::format(
      "{} of {} (rank{} {}, stage {}, micro-batch {}, {})", of_weight ? "gradient" : at.tensor,
      of_weight ? at.tensor.substr(gradient.size()) + " in " + at.layer : at.layer,
      difference.ranks.size() > 1 ? "s" : "", fmt::join(difference.ranks, ", "), at.stage, at.micro, samples);
  if (difference.comes_again) return fmt::format("first different in the {}: {}", pass_text(at.pass), where);
  return fmt::format(
      "but its passes, computed again with digests between layers, agree: the fault has passed, and what is known is "
      "the first wrong gradient in the order of the backward pass, {}",
      where);
}

void write_first_difference(const std::string& run_dir, std::int64_t step, const FirstDifference& difference,
                            const std::string& text) {
  const FirstBad& at = difference.at;
  nlohmann::json json{{"step", step},
                      {"text", text},
                      {"pass", pass_name(at.pass)},
                      {"layer", at.layer},
                      {"tensor", at.tensor},
                      {"stage", at.stage},
                      {"micro_batch", at.micro},
                      {"comes_again", difference.comes_again}};
  const bool one = difference.first_sample == difference.last_sample;
  json["rank"] = difference.ranks.size() == 1 ? nlohmann::json(difference.ranks.front()) : nlohmann::json();
  json["ranks"] = difference.ranks;
  json["sample"] = one ? nlohmann::json(difference.first_sample) : nlohmann::json();
  json["samples"] = {difference.first_sample, difference.last_sample};
  write_place(run_dir + "/first_difference.json", json);
}

}  // namespace sestina
