// Golden optimizer files, replayed through the program's own code. What a file holds: weight_0, gradient (T, m, n), the
// weight after each step, the state after the last, hyper-parameters as attributes of /hyper, tolerances as attributes.
#pragma once
#include <string>

#include "kernels/blas/exec.hpp"
#include "regression/hdf5_reader.hpp"

namespace sestina::replay {

struct Outcome {
  double error = 0;         // largest |got - want| / max |want|
  double of_tolerance = 0;  // largest |got - want| / (atol + rtol |want|): above 1 is a failure
};

// Compares values with dataset `name`; step picks one of its leading dimension, -1 all of it.
void compare(const Hdf5Reader&, const std::string& name, std::int64_t step, const std::vector<float>& got, double atol,
             double rtol, Outcome&);

// Replays a file of a matrix optimizer on one space: its name is that of our kind.
template <class Space>
Outcome replay_matrix(const Space&, const Hdf5Reader&);

// Replays a file of kind = "orthogonalize" on one space.
template <class Space>
Outcome replay_orthogonalize(const Space&, const Hdf5Reader&);

// Replays a file of optimizer = "adamw" on one space.
template <class Exec>
Outcome replay_adamw(const Exec&, const Hdf5Reader&);

// Replays a file of kind = "pipeline" on one space.
template <class Exec>
Outcome replay_pipeline(const Exec&, const Hdf5Reader&);

// Replays a file of kind = "cayley-neumann", "poet-linear", "poet-int8" or "poet-train" on one space.
template <class Space>
Outcome replay_poet(const Space&, const Hdf5Reader&);

}  // namespace sestina::replay
