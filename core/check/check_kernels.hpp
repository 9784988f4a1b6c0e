// The kernels of a step compared, on the space where they run, with what their formulas say: each vendor library and
// each kernel of our own, on the shapes of the deck's model, once more with the same input for the same bits, and
// timed. The references are plain loops on the host, in double.
#pragma once
#include <vector>

#include "core/check/kernel_check.hpp"
#include "core/deck/options.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

// Checks all kernels that the deck's model calls for when it computes in T, and some of optimizers, with micro-batches
// of so many sequences. Memory: some copies of the largest matrix. Throws nothing because a kernel is wrong.
template <class Exec, class T>
std::vector<KernelCheck> check_kernels(const Exec&, const Options&, int micro_batch);

}  // namespace sestina
