#include "app/train/training_batches.hpp"

#include <spdlog/spdlog.h>

namespace sestina {

TrainingBatches::TrainingBatches(const SampleSet& set, const Options& options, const BatchShare& share)
    : set_(set),
      share_(share),
      sequence_(options.data.sequence_length),
      masked_(options.data.mask_documents),
      can_drop_(!options.parallel.is_async()) {}

void TrainingBatches::start_at(std::uint64_t sample) {
  const auto B = static_cast<std::uint64_t>(share_.micro_batch);
  const bool in_turn = share_.stride > 1;
  const BatchPattern pattern{in_turn ? 1 : share_.count,
                             B * static_cast<std::uint64_t>(in_turn ? share_.stride - 1 : share_.all - share_.count)};
  loader_ = std::make_unique<DataLoader>(set_, share_.micro_batch, sequence_,
                                         sample + B * static_cast<std::uint64_t>(share_.first), pattern);
}

BatchView TrainingBatches::next() {
  try {
    loader_->next(batch_);
  } catch (const Error& error) {
    if (!can_drop_) throw;
    lose(error);
  }
  return {batch_.tokens.data(), masked_ ? batch_.first_key.data() : nullptr};
}

void TrainingBatches::lose(const Error& error) {
  if (!lost_) spdlog::warn("{}", error.what());
  lost_ = error;
  const auto rows = static_cast<std::size_t>(share_.micro_batch), length = static_cast<std::size_t>(sequence_);
  batch_.tokens.assign(rows * (length + 1), 0);
  batch_.first_key.assign(rows * length, 0);
}

}  // namespace sestina
