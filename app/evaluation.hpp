// Loss over held-out samples, always the same ones: samples 0 .. batches * B - 1 of the set.
#pragma once
#include <functional>
#include <optional>

#include "core/session.hpp"
#include "io/data_loader.hpp"

namespace sestina {

struct Evaluation {
  double loss = 0;                      // nats per token
  std::optional<double> bits_per_byte;  // when the set knows its bytes per token
  std::uint64_t tokens = 0;
};

// Reads at most `batches` micro-batches (fewer when the set is smaller, at least one window). Empty when `stop` said
// so.
template <class Exec, class T>
std::optional<Evaluation> evaluate_loss(Session<Exec, T>&, const SampleSet&, int batches,
                                        const std::function<bool()>& stop);

}  // namespace sestina
