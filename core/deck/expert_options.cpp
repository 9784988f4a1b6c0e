#include "core/deck/expert_options.hpp"

#include <numeric>

#include "core/deck/deck.hpp"

namespace sestina {

void read_expert_parallel(Deck& deck, const ModelConfig& model, ParallelOptions& parallel) {
  constexpr const char *key = "parallel.ep", *room = "parallel.expert_room";
  constexpr DeckRange ranks{.min = 1, .max = 1 << 16};
  parallel.ep = static_cast<int>(deck.integer(key, 1, ranks));
  parallel.expert_room = deck.number(room, 0, not_negative);
  if (parallel.expert_room > 0 && parallel.expert_room < 1)
    deck.error(room, "less room than the mean takes", "0 (room for all rows), or >= 1");
  if (parallel.ep == 1) return;
  const std::int64_t fitting = std::gcd(std::int64_t{parallel.dp}, model.num_experts);
  if (!model.has_experts())
    deck.error(key, "needs experts to share out, and the model has none (model.num_experts)", "1");
  else if (parallel.dp % parallel.ep != 0)
    deck.error(key, fmt::format("does not divide parallel.dp = {}", parallel.dp),
               fmt::format("a divisor of {}", fitting));
  else if (model.num_experts % parallel.ep != 0)
    deck.error(key, fmt::format("does not divide model.num_experts = {}", model.num_experts),
               fmt::format("a divisor of {}", fitting));
}

void require_expert_parallel(Deck& deck, const Options& options) {
  if (options.parallel.ep == 1) return;
  constexpr const char* one = "1";
  if (options.parallel.is_async() && options.parallel.stash == ParallelOptions::Stash::saved)
    deck.error(
        "parallel.stash",
        "conflicts with parallel.ep > 1: passes that are saved have the rows that came to the experts of a rank, "
        "with which no other ranks can go on",
        "on, recompute");
  if (options.run.audit_every > 0)
    deck.error("run.audit_every",
               "conflicts with parallel.ep > 1: no replica can compute a micro-batch of another one without the ranks "
               "that hold the other experts",
               "0");
  if (replicated_over_dp(options.parallel) && replicas_drift(options.parallel, options.optimizer))
    deck.error("optimizer.refresh.visibility",
               "conflicts with parallel.ep > 1 and parallel.partition = \"replicated\": all data-parallel ranks make "
               "replicas equal together, and they hold different experts",
               "fixed");
  if (options.model.linear.form != "dense")
    deck.error("parallel.ep",
               fmt::format("is not implemented for model.linear.form = \"{}\"", options.model.linear.form), one);
}

void require_router_bias(Deck& deck, const Options& options) {
  if (options.model.router_bias_rate > 0 && options.parallel.is_async())
    deck.error("model.router_bias_rate",
               "conflicts with parallel.schedule = \"async-1f1b\": biases would move between a forward pass and the "
               "backward pass that chooses again",
               "0, or a synchronous schedule");
}

}  // namespace sestina
