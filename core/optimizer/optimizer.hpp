// The optimizer of all tensors of one rank: AdamW or another elementwise rule for those that are no matrices, and the
// deck's matrix optimizer for the rest. It knows no matrix optimizer by name.
#pragma once
#include <memory>
#include <vector>

#include "core/optimizer/base/update_record.hpp"
#include "core/optimizer/matrix_set.hpp"
#include "core/optimizer/methods/adamw.hpp"

namespace sestina {

WorkerPool::Options worker_options(const RefreshOptions&);

template <class Exec, class T>
class Optimizer final : public OptimizerControl {
 public:
  // Creates all state, zero. tensors: owned ones, in the order of the model's specs; a matrix of which a slab is owned
  // is updated as a matrix by itself (parallel.tp_update = "blockwise"), unless it is `sharded`. homed: matrices that
  // are gathered for their update, after all others. nonfinite: raised by every update that writes a weight that is not
  // finite (kernels/optimizer/matrix_update.hpp). workers: of asynchronous refreshes, null: a pool of its own
  // (worker_options).
  Optimizer(const Exec&, const std::vector<OwnedTensor<Exec, T>>& tensors, const OptimizerOptions&, bool deterministic,
            const MatrixIndex&, const std::vector<MatrixItem<Exec>>& homed = {}, double* nonfinite = nullptr,
            const std::shared_ptr<RefreshWorkers>& workers = {});

  // Makes update number t (from 1) with factor times each tensor's peak rate; gradients are multiplied by
  // gradient_scale.
  void step(const Exec&, std::int64_t t, double factor, double gradient_scale);
  // Make the two halves of an update; step_matrices takes the range [begin, end) of the matrices.
  void step_scalar(const Exec&, std::int64_t t, double factor, double gradient_scale);
  void step_matrices(std::int64_t t, double factor, double gradient_scale, std::size_t begin, std::size_t end);
  void withhold(const Exec& exec, std::int64_t t) {  // update number t is not made
    scalar_.withhold(exec, t);
    if (matrices_) matrices_->withhold(t);
  }
  bool repeats() { return !matrices_ || matrices_->repeats(); }  // see MatrixSet
  void follow_merges(const LayerMerges* early) {                 // see AdamW
    scalar_.follow_merges(early);
    if (matrices_) matrices_->follow_merges(early);
  }
  void start_average(const Exec& exec) { scalar_.start_average(exec); }  // see AdamW
  void swap_average(const Exec& exec) { scalar_.swap_average(exec); }
  std::size_t matrix_count() const { return matrices_ ? matrices_->size() : 0; }

  // Returns "/optimizer/<HF name>/<field>": the scalar optimizer's first, each in spec order.
  std::vector<StateField> state() const;
  std::vector<UpdateRecord> records() const;  // of each tensor that it updates, without measures

  RefreshSeconds take_refresh_seconds() override {
    return matrices_ ? matrices_->take_refresh_seconds() : RefreshSeconds{};
  }
  RefreshDrift take_refresh_drift() override { return matrices_ ? matrices_->take_refresh_drift() : RefreshDrift{}; }
  WorkerPool* workers() override { return matrices_ ? matrices_->workers() : nullptr; }
  RefreshAges refresh_ages() const override { return matrices_ ? matrices_->ages() : RefreshAges{}; }
  std::int64_t refresh_failures() const override { return matrices_ ? matrices_->refresh_failures() : 0; }
  std::size_t state_bytes() const;
  void time_products(bool on) {
    if (matrices_) matrices_->time_products(on);
  }
  ProductCount take_products() { return matrices_ ? matrices_->take_products() : ProductCount{}; }
  void dump_failures(const RefreshDump& dump) override {
    if (matrices_) matrices_->dump_failures(dump);
  }
  void set_refresh_periods(const std::vector<std::int64_t>& periods) override {
    if (matrices_) matrices_->set_refresh_periods(periods);
  }
  void set_refresh_staleness(std::int64_t updates) override {
    if (matrices_) matrices_->set_refresh_staleness(updates);
  }
  void set_refresh_executors(const std::vector<std::uint8_t>& in_update) override {
    if (matrices_) matrices_->set_refresh_executors(in_update);
  }
  void page_to(const std::shared_ptr<Pager>& pager) override {
    scalar_.page_to(pager);
    if (matrices_) matrices_->page_to(pager);
  }
  MatrixSet<Exec>* matrices() { return matrices_.get(); }               // null: there are none
  int streams() const { return matrices_ ? matrices_->streams() : 0; }  // of matrices updated at the same time

 private:
  AdamW<Exec, T> scalar_;
  std::unique_ptr<MatrixSet<Exec>> matrices_;  // null: there are none
};

}  // namespace sestina
