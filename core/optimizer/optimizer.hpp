// What updates all tensors of one rank: AdamW for those that are no matrices, and the deck's matrix optimizer for the
// rest. Knows no matrix optimizer by name.
#pragma once
#include <memory>
#include <vector>

#include "core/optimizer/adamw.hpp"
#include "core/optimizer/matrix_set.hpp"

namespace sestina {

template <class Exec, class T>
class Optimizer {
 public:
  // All state is created here, zero. Tensors in the order of the model's specs.
  Optimizer(const Exec&, const std::vector<OwnedTensor<Exec, T>>&, const OptimizerOptions&, bool deterministic);

  // Update number t (from 1) with factor times each tensor's peak rate; gradients are multiplied by gradient_scale.
  void step(const Exec&, std::int64_t t, double factor, double gradient_scale);

  // "/optimizer/<HF name>/<field>": the scalar optimizer's first, each in spec order.
  std::vector<StateField> state() const;

  double take_refresh_seconds() { return matrices_ ? matrices_->take_refresh_seconds() : 0; }
  std::int64_t refresh_failures() const { return matrices_ ? matrices_->refresh_failures() : 0; }
  std::size_t state_bytes() const;
  void time_products(bool on) {
    if (matrices_) matrices_->time_products(on);
  }
  ProductCount take_products() { return matrices_ ? matrices_->take_products() : ProductCount{}; }
  void dump_failures(const RefreshDump& dump) {  // where factors go that could not be decomposed; from any lane
    if (matrices_) matrices_->dump_failures(dump);
  }
  int lanes() const { return matrices_ ? matrices_->lanes() : 0; }  // of matrices updated side by side

 private:
  AdamW<Exec, T> scalar_;
  std::unique_ptr<MatrixSet<Exec>> matrices_;  // null: there are none
};

}  // namespace sestina
