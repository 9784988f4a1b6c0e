// Loss over held-out samples, always the same ones: samples 0 .. batches * B - 1 of the set.
#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "io/tokens/data_loader.hpp"
#include "parallel/step/evaluator.hpp"

namespace sestina {

struct Evaluation {
  double loss = 0;                      // nats per token
  std::optional<double> bits_per_byte;  // when the set knows its bytes per token
  std::uint64_t tokens = 0;
  std::vector<double> window_losses;  // mean loss of each window
};

// The mean of independent numbers, and its standard error: deviation / sqrt(count), NaN for fewer than two numbers.
struct MeanError {
  double mean = 0, error = 0;
};
MeanError mean_error(const std::vector<double>&);

// Evaluates the loss. Data-parallel ranks share the micro-batches: rank r computes numbers i with i mod dp = r, and all
// have all results. Reads at most `batches` micro-batches (fewer when the set is smaller, at least one window). The
// result is empty when `stop` returned true; it is asked before every micro-batch of a rank. unreadable is told of a
// sample that could not be read, whose loss is then that of other tokens; without it the Error is thrown, while other
// ranks may wait for this one.
std::optional<Evaluation> evaluate_loss(Evaluator&, const SampleSet&, int batches, const std::function<bool()>& stop,
                                        const std::function<void(const Error&)>& unreadable = {});

// Gives every rank all numbers, each of which stands on the data-parallel rank that computed it, in the last pipeline
// stage, and is 0 on other ranks. Exact.
void share_results(Evaluator&, std::vector<double>&);

}  // namespace sestina
