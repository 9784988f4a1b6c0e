#include "core/deck/model_config.hpp"

#include <array>
#include <numeric>

#include "core/deck/deck.hpp"
#include "core/deck/options.hpp"

namespace sestina {

namespace {

constexpr DeckRange count{.min = 1, .max = 1 << 24};
constexpr const char* state_bits_key = "model.linear.state_bits";
constexpr const char* merge_bound_key = "model.linear.merge_bound";

// Codes of the frozen weights.
void read_codes(Deck& deck, LinearOptions& o) {
  constexpr const char* bits_key = "model.linear.base_bits";
  o.group_size = deck.integer("model.linear.group_size", o.group_size, {.min = 2, .max = 1 << 16});
  o.zero_in_range = deck.boolean("model.linear.zero_in_range", true);
  o.base_bits = static_cast<int>(deck.integer(bits_key, o.base_bits));
  if (o.base_bits != 8 && o.base_bits != 4) return deck.error(bits_key, "no such width", "8, 4");
  for (const auto& [key, size] : {std::pair("group_size", o.group_size), std::pair("block_size", o.block_size)})
    if (o.base_bits == 4 && size % 2 != 0)
      deck.error(bits_key, fmt::format("two codes share a byte, and model.linear.{} = {} is odd", key, size),
                 "8, or an even one");
}

void read_poet(Deck& deck, LinearOptions& o) {
  using Variant = LinearOptions::Variant;
  const std::string variant = deck.choice("model.linear.variant", "fast", {"fast", "mem", "xq"});
  o.variant = variant == "xq" ? Variant::xq : variant == "mem" ? Variant::mem : Variant::fast;
  o.block_size = deck.integer("model.linear.block_size", o.block_size, {.min = 2, .max = 1 << 14});
  o.one_block = deck.choice("model.linear.sampling", "block-stochastic", {"block-stochastic", "fully-stochastic"}) ==
                "fully-stochastic";
  o.merge_every = deck.integer("model.linear.merge_every", o.merge_every, count);
  o.staggered = deck.choice("model.linear.merge_phase", "together", {"together", "staggered"}) == "staggered";
  o.merge_bound = deck.number(merge_bound_key, 0, not_negative);
  if (o.merge_bound > 0) o.merge_bound_every = deck.integer("model.linear.merge_bound_every", 10, count);
  o.even = deck.choice("model.linear.cnp", "paper", {"paper", "even"}) == "even";
  o.lr_factor = deck.number("model.linear.lr_factor", o.lr_factor, not_negative);
  const std::string init =
      deck.choice("model.linear.init", "normalized", {"normalized", "gaussian", "uniform-spectrum"});
  o.init = init == "gaussian"           ? LinearOptions::Init::gaussian
           : init == "uniform-spectrum" ? LinearOptions::Init::uniform_spectrum
                                        : LinearOptions::Init::normalized;
  o.dense_if_indivisible = deck.choice("model.linear.on_indivisible", "error", {"error", "dense"}) == "dense";
  o.eps_on_corrected = deck.choice("model.linear.eps_on", "corrected", {"corrected", "uncorrected"}) == "corrected";
  o.clip_warmup_steps = deck.integer("model.linear.clip_warmup_steps", 0, not_negative);
  o.clip_warmup_until = deck.integer("model.linear.clip_warmup_until", 0, not_negative);
  o.clip_start_ratio = deck.number("model.linear.clip_start_ratio", 0, {.min = 0, .max = 1});
  if (o.staggered && o.clip_warmup_steps > 0)
    deck.error("model.linear.clip_warmup_steps",
               "conflicts with model.linear.merge_phase = \"staggered\": layers merge one after another, and the "
               "threshold is one for all",
               "0");
  if (o.merge_bound > 0 && o.clip_warmup_steps > 0)
    deck.error("model.linear.clip_warmup_steps",
               fmt::format("conflicts with {}: a layer is merged early by itself, and the threshold is one for all",
                           merge_bound_key),
               "0");
  if (o.variant == Variant::xq) read_codes(deck, o);
}

void read_lora(Deck& deck, LinearOptions& o) {
  o.rank = deck.integer("model.linear.rank", o.rank, count);
  o.alpha = deck.number("model.linear.alpha", o.alpha, {.min = 0, .open_min = true});
}

// Returns the sizes of the sides of linear layers, and with `shards` those of a part where tensor parallelism cuts.
using Sides = std::array<std::pair<std::string, std::int64_t>, 4>;
Sides sides_of(const ModelConfig& c, std::int64_t shards) {
  const std::string part = shards > 1 ? fmt::format(" in {} shards", shards) : "";
  return {{{"hidden_size", c.hidden_size},
           {"query width" + part, c.query_width() / shards},
           {"key and value width" + part, c.key_value_width() / shards},
           {"intermediate_size" + part, c.intermediate_size / shards}}};
}

std::string divisors_of(std::int64_t n, std::int64_t first) {
  std::vector<std::int64_t> divisors;
  for (std::int64_t size = first; size <= n; ++size)
    if (n % size == 0) divisors.push_back(size);
  return fmt::format("{}", fmt::join(divisors, ", "));
}

template <class NamedSizes>
std::int64_t common_divisor(const NamedSizes& sides) {
  std::int64_t common = 0;
  for (const auto& [name, side] : sides) common = std::gcd(common, side);
  return common;
}

std::vector<ModelDefect> lora_defects(const ModelConfig& c) {
  std::vector<ModelDefect> found;
  for (const auto& [name, side] : sides_of(c, 1))
    if (c.linear.rank > side)
      found.push_back({"linear.rank", fmt::format("above the {} of {}", name, side), fmt::format("1 to {}", side)});
  return found;
}

std::vector<ModelDefect> shard_defects(const ModelConfig& c) {
  const LinearOptions& o = c.linear;
  const std::array<std::pair<const char*, std::int64_t>, 3> sides = {{{"num_attention_heads", c.num_attention_heads},
                                                                      {"num_key_value_heads", c.num_key_value_heads},
                                                                      {"intermediate_size", c.intermediate_size}}};
  for (const auto& [name, side] : sides)
    if (side % o.shards != 0)
      return {{"linear.shards",
               fmt::format("{} (by default parallel.tp) does not divide {} = {}", o.shards, name, side),
               divisors_of(common_divisor(sides), 1)}};
  return {};
}

std::vector<ModelDefect> block_defects(const ModelConfig& c) {
  const Sides sides = sides_of(c, c.linear.shards);
  for (const auto& [name, side] : sides)
    if (side % c.linear.block_size != 0)
      return {{"linear.block_size", fmt::format("does not divide the {} of {}", name, side),
               divisors_of(common_divisor(sides), 2) + ", or any with model.linear.on_indivisible = \"dense\""}};
  return {};
}

// Finds sides that groups of coded weights do not divide: a group lies within a row where rows may be cut.
std::vector<ModelDefect> group_defects(const ModelConfig& c) {
  const LinearOptions& o = c.linear;
  if (o.variant != LinearOptions::Variant::xq || o.shards == 1) return {};
  const Sides all = sides_of(c, o.shards);
  const std::array<std::pair<std::string, std::int64_t>, 3> inputs = {all[0], all[1], all[3]};
  for (const auto& [name, side] : inputs)
    if (side % o.group_size != 0)
      return {{"linear.group_size", fmt::format("does not divide the {} of {}", name, side),
               divisors_of(common_divisor(inputs), 2) + ", or any with model.linear.on_indivisible = \"dense\""}};
  return {};
}

// Moments in 8 bits: AdamW has them alone, and a block of numbers that share a scale lies on one rank.
void require_state_bits(Deck& deck, const Options& options) {
  const LinearOptions& o = options.model.linear;
  if (o.state_bits != 8) return;
  const OptimizerOptions& optimizer = options.optimizer;
  if (optimizer.adamw.rule != ElementRule::adamw)
    deck.error(state_bits_key, fmt::format("\"{}\" keeps its state in 32 bits", name(optimizer.adamw.rule)), "32");
  const Sides whole = sides_of(options.model, o.shards), parts = sides_of(options.model, options.parallel.tp);
  std::int64_t common = 0;  // divisor of the numbers that a rank has of the rotations that are cut
  for (std::size_t side = 1; side < parts.size() && options.parallel.tp > 1; ++side)
    if (whole[side].second % o.block_size == 0) {
      const std::int64_t turned = o.one_block ? o.shards / options.parallel.tp * o.block_size : parts[side].second;
      common = std::gcd(common, turned * (o.block_size - 1) / 2);
    }
  if (common % optimizer.state_block == 0) return;
  std::string allowed;
  for (std::int64_t block = 8; block <= 2048 && common % block == 0; block *= 2) allowed += fmt::format("{}, ", block);
  deck.error("optimizer.state_block",
             fmt::format("parallel.tp = {} leaves multiples of {} numbers of rotations on a rank: with "
                         "model.linear.state_bits = 8 a block of {} would lie on two ranks",
                         options.parallel.tp, common, optimizer.state_block),
             allowed + (allowed.empty() ? "" : "or ") + "model.linear.state_bits = 32");
}

}  // namespace

LinearOptions LinearOptions::read(Deck& deck) {
  LinearOptions options;
  options.form = deck.choice("model.linear.form", "dense", {"dense", "poet-x", "lora"});
  if (options.form == "poet-x") read_poet(deck, options);
  if (options.form == "lora") read_lora(deck, options);
  return options;
}

void read_with_others(Deck& deck, Options& options) {
  LinearOptions& o = options.model.linear;
  if (o.form != "poet-x") return;
  o.shards = deck.integer("model.linear.shards", options.parallel.tp, {.min = 1, .max = 1 << 16});
  o.state_bits = static_cast<int>(deck.integer(state_bits_key, 32));
  if (o.state_bits != 8 && o.state_bits != 32) deck.error(state_bits_key, "no such width", "32, 8");
  const bool coded = o.variant == LinearOptions::Variant::xq;
  o.residual = deck.boolean("model.linear.merge_residual", !coded) &&
               (coded || options.train.precision == TrainOptions::Precision::bf16);
}

std::vector<ModelDefect> linear_defects(const ModelConfig& c) {
  if (c.has_experts())
    return {
        {"linear.form", fmt::format("\"{}\" is not implemented for the weights of experts", c.linear.form), "dense"}};
  if (c.linear.form == "lora") return lora_defects(c);
  if (c.linear.form != "poet-x") return {};
  std::vector<ModelDefect> found = shard_defects(c);
  if (!found.empty() || c.linear.dense_if_indivisible) return found;
  for (auto* defects : {block_defects, group_defects})
    for (ModelDefect& defect : defects(c)) found.push_back(std::move(defect));
  return found;
}

void require_form_fits(Deck& deck, const Options& options) {
  const LinearOptions& o = options.model.linear;
  if (o.is_dense()) return;
  for (const ModelDefect& defect : linear_defects(options.model))
    deck.error("model." + defect.key, defect.what, defect.allowed);
  const std::string form = fmt::format("model.linear.form = \"{}\"", o.form);
  if (o.form == "poet-x" && o.shards % options.parallel.tp != 0)
    deck.error("parallel.tp",
               fmt::format("does not divide model.linear.shards = {}, of which ranks hold some", o.shards),
               divisors_of(o.shards, 1));
  require_state_bits(deck, options);
  if (o.staggered && options.parallel.schedule == ParallelOptions::Schedule::async_1f1b)
    deck.error("model.linear.merge_phase",
               "conflicts with parallel.schedule = \"async-1f1b\", whose pipeline runs empty for each merge",
               "together");
  if (o.merge_bound > 0 && options.parallel.schedule == ParallelOptions::Schedule::async_1f1b)
    deck.error(merge_bound_key,
               "conflicts with parallel.schedule = \"async-1f1b\", whose pipeline has to run empty for a merge: when "
               "the norm is known, micro-batches under the old weights are in flight",
               "0");
  if (options.optimizer.qk_clip > 0)
    deck.error("optimizer.qk_clip", fmt::format("scales weights that {} keeps frozen", form), "0");
}

void require_rotations(Deck& deck, const Options& options) {
  const std::string& form = options.model.linear.form;
  if (options.metrics.rotations_every > 0 && form != "poet-x")
    deck.error("metrics.rotations_every",
               fmt::format("measures rotations, which model.linear.form = \"{}\" does not have", form), "0");
}

double clip_norm_at(const LinearOptions& o, double clip_norm, std::int64_t t) {
  if (o.is_dense() || o.clip_warmup_steps == 0) return clip_norm;
  const std::int64_t j = t - 1, since = j % o.merge_every;
  if (j < o.merge_every || j > o.clip_warmup_until || since >= o.clip_warmup_steps) return clip_norm;
  const double risen = static_cast<double>(since) / static_cast<double>(o.clip_warmup_steps);
  return clip_norm * (o.clip_start_ratio + (1 - o.clip_start_ratio) * risen);
}

}  // namespace sestina
