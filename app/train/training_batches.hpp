// The micro-batches of a rank's share of the training data.
#pragma once
#include <memory>
#include <optional>

#include "io/tokens/data_loader.hpp"
#include "kernels/base/error.hpp"
#include "parallel/plan/make_plan.hpp"
#include "parallel/step/step_exchange.hpp"

namespace sestina {

class TrainingBatches final : public Batches {
 public:
  // The set must outlive it.
  TrainingBatches(const SampleSet&, const Options&, const BatchShare&);
  void start_at(std::uint64_t sample);  // sample: the first of the next global batch
  // Reads the next micro-batch. One that cannot be read is lost; in an asynchronous pipeline, whose updates are not
  // waited for, no update can be dropped, and the Error is thrown.
  BatchView next() override;
  // Notes that a file cannot be read. The step goes on with tokens that are all 0, because other ranks wait for this
  // one's part of it; after its passes all ranks vote, and drop it.
  void lose(const Error&);
  const std::optional<Error>& lost() const { return lost_; }

 private:
  const SampleSet& set_;
  BatchShare share_;
  int sequence_;
  bool masked_, can_drop_;
  std::unique_ptr<DataLoader> loader_;
  Batch batch_;
  std::optional<Error> lost_;
};

}  // namespace sestina
