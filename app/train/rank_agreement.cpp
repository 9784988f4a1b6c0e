#include "app/train/rank_agreement.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/tokens/token_file.hpp"
#include "kernels/base/version.hpp"
#include "kernels/blas/exec.hpp"
#include "parallel/comm/device_communicator.hpp"
#include "parallel/comm/runtime.hpp"

namespace sestina {
namespace {

using nlohmann::json;

constexpr std::size_t max_lines = 20;  // lines of a message

std::string digest_of(const std::vector<Statement>& statements) {
  json compared = json::array();
  for (const Statement& s : statements) compared.push_back({s.key, s.value});
  const std::string text = compared.dump(-1, ' ', false, json::error_handler_t::replace);
  return digest128(text.data(), text.size());
}

// Returns the first rank of the largest group of equal digests (of equal groups, the one with the lowest rank), and the
// first rank outside it.
struct OddRank {
  int most = 0, odd = 0;
};
std::optional<OddRank> find_odd(const std::vector<std::string>& digests) {
  std::map<std::string, int> count;
  for (const std::string& digest : digests) ++count[digest];
  if (count.size() == 1) return std::nullopt;
  const auto most = std::max_element(digests.begin(), digests.end(),
                                     [&](const auto& a, const auto& b) { return count.at(a) < count.at(b); });
  const auto odd = std::find_if(digests.begin(), digests.end(), [&](const auto& d) { return d != *most; });
  return OddRank{static_cast<int>(most - digests.begin()), static_cast<int>(odd - digests.begin())};
}

std::vector<Statement> statements_of(Communicator& world, int rank, const std::vector<Statement>& mine) {
  json list = json::array();
  for (const Statement& s : mine) list.push_back({s.key, s.value, s.shown.empty() ? s.value : s.shown, s.given});
  std::string text = list.dump(-1, ' ', false, json::error_handler_t::replace);
  world.broadcast(text, rank);
  std::vector<Statement> theirs;
  for (const json& s : json::parse(text)) theirs.push_back({s[0], s[1], s[2], s[3]});
  return theirs;
}

// Writes "key: this there, that here" for each difference, given ones first.
std::vector<std::string> differences(const OddRank& ranks, const std::vector<Statement>& odd,
                                     const std::vector<Statement>& most) {
  const auto find = [](const std::vector<Statement>& list, const std::string& key) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const Statement& s) { return s.key == key; });
    return found == list.end() ? nullptr : &*found;
  };
  std::vector<Statement> all = odd;
  for (const Statement& s : most)
    if (find(odd, s.key) == nullptr) all.push_back(s);
  std::vector<std::string> given, derived;
  for (const Statement& s : all) {
    const Statement *a = find(odd, s.key), *b = find(most, s.key);
    if (a != nullptr && b != nullptr && a->value == b->value) continue;
    const auto shown = [](const Statement* one) {
      return one == nullptr ? "not there" : one->shown.empty() ? "not set" : one->shown;
    };
    const bool is_given = (a != nullptr && a->given) || (b != nullptr && b->given);
    (is_given ? given : derived)
        .push_back(fmt::format("{}: {} on rank {}, {} on rank {}", s.key, shown(a), ranks.odd, shown(b), ranks.most));
  }
  given.insert(given.end(), derived.begin(), derived.end());
  return given;
}

}  // namespace

void require_agreement(Communicator& world, const std::vector<Statement>& mine, ExitCode code) {
  if (world.size() == 1) return;
  const std::vector<std::string> digests = world.all_gather(digest_of(mine));
  const std::optional<OddRank> ranks = find_odd(digests);
  if (!ranks) return;
  const std::vector<Statement> odd = statements_of(world, ranks->odd, mine),
                               most = statements_of(world, ranks->most, mine);
  std::vector<std::string> lines = differences(*ranks, odd, most);
  if (lines.size() > max_lines) {
    const std::size_t more = lines.size() - max_lines;
    lines.resize(max_lines);
    lines.push_back(fmt::format("and {} more", more));
  }
  fail_on_all(code, "rank {} was started differently from rank {}; all ranks must agree on:\n  {}", ranks->odd,
              ranks->most, fmt::join(lines, "\n  "));
}

std::vector<Statement> program_statements() {
  return {{"program version", fmt::format("{} ({})", version().text, version().commit)},
          {"program build", fmt::format("{}, {}", version().build_type, version().compiler)},
          {"program device", Device::name()},
          {"program MPI", ranks::library()},
          {"program NCCL", nccl_version()}};
}

std::vector<Statement> deck_statements(const Deck& resolved, const Deck& given) {
  std::vector<Statement> statements;
  for (const std::string& key : resolved.resolved_keys())
    if (!is_local_to_rank(key)) statements.push_back({key, resolved.resolved(key), "", given.has(key)});
  return statements;
}

std::vector<Statement> data_statements(const Options& options, const Poll& poll) {
  std::vector<Statement> statements;
  const auto add = [&](const std::string& key, const std::string& path, const FileDigest& digest) {
    const std::string value = fmt::format("{} bytes with digest {}", digest.size, digest.xxh3_128);
    statements.push_back({key, value, fmt::format("{} ({})", path, value), true});
  };
  const auto add_sources = [&](const char* key, const std::vector<DataSource>& sources) {
    for (std::size_t i = 0; i < sources.size(); ++i)
      add(fmt::format("{}.{}.path", key, i), sources[i].path, digest_source(sources[i], poll));
  };
  if (!options.data.tokenizer.empty())
    add("data.tokenizer", options.data.tokenizer, digest_file(options.data.tokenizer, poll));
  add_sources("data.source", options.data.source);
  add_sources("data.validation", options.data.validation);
  if (!options.model.from_hf.empty())
    add("model.from_hf", options.model.from_hf, digest_hf_folder(options.model.from_hf, poll));
  return statements;
}

}  // namespace sestina
