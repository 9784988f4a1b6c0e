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
  void start_at(std::uint64_t sample);  // the first one of the global batch that comes next
  // What cannot be read is lost, but for an asynchronous pipeline, whose updates are not waited for: none of them can
  // be dropped, and the Error is thrown.
  BatchView next() override;
  // A file cannot be read any more. The step goes on, on tokens that are none, because other ranks wait for this one's
  // part of it; after its passes all vote, and drop it.
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
