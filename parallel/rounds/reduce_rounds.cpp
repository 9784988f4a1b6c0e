#include "parallel/rounds/reduce_rounds.hpp"

#include <algorithm>
#include <optional>

namespace sestina {
namespace {

int levels_over(int ranks) {
  int levels = 0;
  while ((1 << levels) < ranks) ++levels;
  return levels;
}

// Returns how many parts of a group have ranks at all.
int parts_of(int ranks, int level_before, int level, int group) {
  const int all = 1 << (level - level_before), first = group << (level - level_before);
  const int begun = (ranks + (1 << level_before) - 1) >> level_before;
  return std::min(all, begun - first);
}

// Returns rounds of so many levels each, inside the nodes first.
std::vector<int> even_rounds(int ranks, int node_levels, int step) {
  std::vector<int> levels;
  const int all = levels_over(ranks);
  for (int level = 0; level < all;) {
    level = std::min(level + step, level < node_levels ? node_levels : all);
    levels.push_back(level);
  }
  return levels;
}

std::size_t largest(const std::vector<std::size_t>& values) { return *std::max_element(values.begin(), values.end()); }

// Returns as few chunks as the limit allows.
int chunks_within(std::size_t limit, ReduceRounds rounds, const std::vector<std::size_t>& lengths) {
  const std::size_t longest = std::max<std::size_t>(1, largest(lengths));
  std::size_t chunks = 1;
  for (std::size_t most = largest(elements_of_chunk(rounds, lengths)); most > limit && chunks < longest;) {
    chunks = std::min(longest, std::max(chunks + 1, chunks * most / std::max<std::size_t>(1, limit)));
    rounds.chunks = static_cast<int>(chunks);
    most = largest(elements_of_chunk(rounds, lengths));
  }
  return static_cast<int>(chunks);
}

// Returns the messages that come to the busiest rank in all rounds of a chunk.
std::size_t messages(const ReduceRounds& rounds, const std::vector<std::size_t>& lengths, bool packs) {
  if (!packs) {
    std::vector<std::size_t> pieces;
    for (const std::size_t length : lengths) pieces.push_back(length > 0 ? 1 : 0);
    return largest(elements_of_chunk({rounds.levels, 1}, pieces));
  }
  std::size_t count = 0;
  int before = 0;
  for (const int level : rounds.levels) {
    count += static_cast<std::size_t>(parts_of(static_cast<int>(lengths.size()), before, level, 0) - 1);
    before = level;
  }
  return count;
}

double seconds(const ReduceRounds& rounds, const std::vector<std::size_t>& lengths, const LinkModel& link) {
  const auto count = static_cast<double>(messages(rounds, lengths, link.packs)) * rounds.chunks;
  const double elements = static_cast<double>(largest(elements_of_chunk(rounds, lengths))) * rounds.chunks;
  return static_cast<double>(rounds.levels.size()) * link.latency + count * link.message +
         elements * sizeof(float) * link.byte;
}

}  // namespace

int holder(int ranks, int owner, int level, int group) {
  for (; level > 0; --level) {
    const int right = 2 * group + 1;
    const bool in_right = ((owner >> (level - 1)) & 1) != 0 && (right << (level - 1)) < ranks;
    group = in_right ? right : 2 * group;
  }
  return group;
}

RoundRoute round_route(int ranks, int rank, int level_before, int level) {
  const int group = rank >> level, mine = rank >> level_before, first = group << (level - level_before);
  RoundRoute route;
  route.place = mine - first;
  route.parts = parts_of(ranks, level_before, level, group);
  for (int owner = 0; owner < ranks; ++owner) {
    if (holder(ranks, owner, level_before, mine) != rank) continue;
    const int to = holder(ranks, owner, level, group);
    if (to != rank) {
      route.sent.push_back({owner, to});
      continue;
    }
    route.kept.push_back(owner);
    std::vector<int>& from = route.from.emplace_back();
    for (int part = 0; part < route.parts; ++part)
      if (part != route.place) from.push_back(holder(ranks, owner, level_before, first + part));
  }
  return route;
}

// Owners with the same place in a group share a rank of every full group: their lengths are added up once for all.
std::vector<std::size_t> round_elements(int level_before, int level, const std::vector<std::size_t>& lengths) {
  const int ranks = static_cast<int>(lengths.size()), members = 1 << level;
  std::vector<std::size_t> elements(lengths.size()), of_place(static_cast<std::size_t>(members));
  for (std::size_t owner = 0; owner < lengths.size(); ++owner)
    of_place[owner & static_cast<std::size_t>(members - 1)] += lengths[owner];
  for (int group = 0; group * members < ranks; ++group) {
    const auto others = static_cast<std::size_t>(parts_of(ranks, level_before, level, group) - 1);
    const int begin = group * members;
    if (begin + members <= ranks) {
      for (int place = 0; place < members; ++place)
        elements[static_cast<std::size_t>(begin + place)] += others * of_place[static_cast<std::size_t>(place)];
      continue;
    }
    for (int owner = 0; owner < ranks; ++owner)
      elements[static_cast<std::size_t>(holder(ranks, owner, level, group))] +=
          others * lengths[static_cast<std::size_t>(owner)];
  }
  return elements;
}

std::vector<std::size_t> elements_of_chunk(const ReduceRounds& rounds, const std::vector<std::size_t>& lengths) {
  const auto chunks = static_cast<std::size_t>(rounds.chunks);
  std::vector<std::size_t> parts, sum(lengths.size());
  for (const std::size_t length : lengths) parts.push_back((length + chunks - 1) / chunks);
  int before = 0;
  for (const int level : rounds.levels) {
    const std::vector<std::size_t> elements = round_elements(before, level, parts);
    for (std::size_t rank = 0; rank < sum.size(); ++rank) sum[rank] += elements[rank];
    before = level;
  }
  return sum;
}

ReduceRounds choose_rounds(const std::vector<std::size_t>& lengths, const NodeLevels& nodes, std::size_t limit,
                           const LinkModel& link) {
  const int ranks = static_cast<int>(lengths.size());
  const int node_levels = nodes.nodes.size() == 1 ? 0 : levels_over(static_cast<int>(nodes.nodes[0].size()));
  std::optional<ReduceRounds> best;
  for (int step = levels_over(ranks); step > 0; --step) {
    ReduceRounds rounds{even_rounds(ranks, node_levels, step), 1};
    if (best && rounds.levels == best->levels) continue;
    rounds.chunks = chunks_within(limit, rounds, lengths);
    if (!best || seconds(rounds, lengths, link) < seconds(*best, lengths, link)) best = rounds;
  }
  return best ? *best : ReduceRounds{};
}

}  // namespace sestina
