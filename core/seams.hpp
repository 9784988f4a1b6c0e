// The seams that point upward: what parallel/ and io/ hang on the mathematics of one rank.
#pragma once
#include "kernels/exec.hpp"

namespace sestina {

// Called by the model around each block (TensorSpec::block): gather of weights, page-in of state and reduction of
// finished gradients hang here. The defaults do nothing.
struct BlockHooks {
  virtual ~BlockHooks() = default;
  virtual void before_forward(int /*block*/) {}
  virtual void before_backward(int /*block*/) {}
  virtual void after_backward(int /*block*/) {}
};

// Operations over a tensor-parallel group; this base class is the group of one rank, on which all are the identity.
template <class Exec>
struct GroupOps {
  virtual ~GroupOps() = default;
  virtual int size() const { return 1; }
  virtual int rank() const { return 0; }
  virtual void sum(const Exec&, Vector<float, Exec>) {}
  virtual void sum(const Exec&, Vector<bf16, Exec>) {}
  virtual void sum(const Exec&, Vector<double, Exec>) {}
  virtual void max(const Exec&, Vector<float, Exec>) {}
};

}  // namespace sestina
