#include "parallel/plan/plan_reading.hpp"

#include <algorithm>

#include "core/deck/options.hpp"
#include "parallel/plan/plan_assign.hpp"
#include "parallel/plan/shard_layout.hpp"

namespace sestina {
namespace {

using Numbers = std::vector<std::int64_t>;

struct Fused {
  std::vector<PartitionItem> items;  // cost = elements: what drives the cuts
  Numbers flops, elements;           // those of the shard
};

Fused fused_tensors(const ModelConfig& model, int tp) {
  const std::int64_t d = model.hidden_size, q = model.query_width(), kv = model.key_value_width();
  const std::int64_t inner = first_of_mlp(model, tp, 1);  // of rank 0, which has the most
  const std::int64_t shape[4][2] = {                      // fc2, fc1, qkv, o: the modules' order reversed
                                    {d, inner},
                                    {(model.gated() ? 2 : 1) * inner, d},
                                    {(q + 2 * kv) / tp, d},
                                    {d, q / tp}};
  constexpr std::int64_t flops_factor = 20;
  Fused fused;
  for (std::int64_t layer = model.num_hidden_layers; layer > 0; --layer)
    for (const auto& [rows, cols] : shape) {
      const std::int64_t least = std::min(rows, cols), most = std::max(rows, cols);
      fused.elements.push_back(rows * cols);
      fused.flops.push_back(flops_factor * most * least * least);
      fused.items.push_back({rows * cols, rows * cols, static_cast<int>(layer)});
    }
  return fused;
}

double ratio_of(const Numbers& value, const std::vector<int>& bin, int bins) {
  Numbers load(at(bins), 0);
  double sum = 0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    load[at(bin[i])] += value[i];
    sum += static_cast<double>(value[i]);
  }
  return sum > 0 ? static_cast<double>(*std::max_element(load.begin(), load.end())) * bins / sum : 1;
}

ReadingRow row(std::string plan, const Fused& fused, const std::vector<int>& bin, int bins) {
  return {std::move(plan), ratio_of(fused.flops, bin, bins), ratio_of(fused.elements, bin, bins)};
}

// Returns the numbers of some of the tensors.
Fused part_of(const Fused& fused, const std::vector<std::size_t>& some) {
  Fused part;
  for (const std::size_t i : some) {
    part.flops.push_back(fused.flops[i]);
    part.elements.push_back(fused.elements[i]);
  }
  return part;
}

// Returns what one data-parallel rank owns, the dearest first.
std::vector<std::size_t> owned_by(const Fused& fused, const std::vector<int>& owner, int rank) {
  std::vector<std::size_t> mine;
  for (std::size_t i = 0; i < owner.size(); ++i)
    if (owner[i] == rank) mine.push_back(i);
  std::stable_sort(mine.begin(), mine.end(),
                   [&](std::size_t a, std::size_t b) { return fused.flops[a] > fused.flops[b]; });
  return mine;
}

// Gives the tensors to homes in order, in equal counts.
std::vector<int> equal_counts(std::size_t items, int bins) {
  std::vector<int> bin;
  for (std::size_t i = 0; i < items; ++i) bin.push_back(static_cast<int>(i * at(bins) / items));
  return bin;
}

double over_mean(std::int64_t bound, const Numbers& value, int bins) {
  double sum = 0;
  for (const std::int64_t x : value) sum += static_cast<double>(x);
  return sum > 0 ? static_cast<double>(bound) * bins / sum : 1;
}

void add_homes(PaperReading& reading, const Fused& fused, const std::vector<int>& owner, int dp, int tp) {
  std::vector<int> home_of(owner.size());
  for (int rank = 0; rank < dp; ++rank) {
    const std::vector<std::size_t> mine = owned_by(fused, owner, rank);
    const Fused part = part_of(fused, mine);
    const std::vector<int> home = assign_longest_first(part.elements, tp).bin;
    for (std::size_t i = 0; i < mine.size(); ++i) home_of[mine[i]] = rank * tp + home[i];
    const ReadingRow greedy = row("micro-groups", part, home, tp);
    if (rank == 0) reading.homes = {row("cost order", part, equal_counts(home.size(), tp), tp), greedy};
    reading.homes_least = rank == 0 ? greedy.flops : std::min(reading.homes_least, greedy.flops);
    reading.homes_most = std::max(reading.homes_most, greedy.flops);
  }
  const Assignment best = assign_optimal(fused.flops, dp * tp);
  reading.all_homes = {row("micro-groups", fused, home_of, dp * tp), row("optimal", fused, best.bin, dp * tp)};
  reading.all_homes_bound = over_mean(best.bound, fused.flops, dp * tp);
}

}  // namespace

PaperReading canzona_reading(const ModelConfig& model, int dp, int tp) {
  constexpr std::int64_t bucket_elements = 400'000'000;
  const Fused fused = fused_tensors(model, tp);
  const Buckets buckets = fill_buckets(fused.items, bucket_elements, false);
  const std::vector<int> balanced = balanced_owners(fused.items, buckets, dp, 1);
  const Assignment best = assign_optimal(fused.flops, dp);
  PaperReading reading;
  reading.dp = {row("start-index", fused, start_index_owners(fused.items, buckets, dp), dp),
                row("balanced", fused, balanced, dp), row("optimal", fused, best.bin, dp)};
  reading.dp_bound = over_mean(best.bound, fused.flops, dp);
  add_homes(reading, fused, balanced, dp, tp);
  return reading;
}

}  // namespace sestina
