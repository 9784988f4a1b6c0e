// What a comparison of a kernel with its plain reference has found (checker.hpp). No Kokkos.
#pragma once
#include <string>
#include <vector>

namespace sestina {

// One kernel on one shape.
struct KernelCheck {
  std::string kernel, shape;  // "q, k, v: forward", "1024 x 1152 x 768"
  std::string output;         // the one of its outputs that is nearest to its bound, or farthest beyond
  // The largest difference of that output from the reference, relative to the output's largest element where nothing
  // else is said; infinite where a number is not finite. Allowed up to the bound.
  double error = 0, bound = 0;
  bool repeats = true;                       // a second call with the same input gave the same bits
  double seconds = 0, flops = 0, bytes = 0;  // flops > 0: bound by products, else by memory
  bool holds() const { return error <= bound && repeats; }
};

// Returns a sentence for each kernel that does not hold: what, on which shape, by how much, what is allowed.
std::vector<std::string> wrong_kernels(const std::vector<KernelCheck>&);

}  // namespace sestina
