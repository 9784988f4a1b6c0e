// One attempt at a refresh in numbers of one type, and what is published of it: shared by single jobs (refresh.cpp) and
// by those that are decomposed together (refresh_batch.cpp).
#pragma once
#include <cmath>
#include <type_traits>

#include "core/optimizer/refresh/refresh.hpp"
#include "kernels/blas/matrix_passes.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/inverse_root.hpp"
#include "kernels/optimizer/matrix_update.hpp"

namespace sestina {

template <class Space>
RootRule root_rule(const RefreshJob<Space>& job) {
  return {job.exponent, job.scale, job.eps, job.perturb_before, job.tolerance, job.max_iterations};
}

// A job in numbers of type T: its inputs in that type, and scratch. With a place for a verdict the host looks at
// nothing: the noted sums make the verdict, and the verdict decides on what is published.
template <class Space, class T>
struct Attempt {
  Stream<Space>& stream;
  Workspace<Space>& workspace;
  const RefreshJob<Space>& job;
  Vector<double, Space> verdict;  // (1), or (0)
  JudgedSums<Space> sums;         // for a verdict
  std::size_t d = job.factor.extent(0);

  bool by_space() const { return verdict.extent(0) > 0; }

  // Returns x, or its copy in another type, which `wide` then holds.
  Matrix<const T, Space> input(Matrix<const float, Space> x, Matrix<T, Space> wide) {
    if constexpr (std::is_same_v<T, float>) {
      return x;
    } else {
      convert<Space, float, T>(stream.exec, flat<const float, Space>(x), flat<T, Space>(wide));
      return wide;
    }
  }

  // Returns whether x is finite, or, where its sum is noted, true.
  bool finite(Vector<const T, Space> x) {
    if (by_space()) return note(x, sums.other);
    return std::isfinite(sum_of_squares<Space, T>(stream.exec, x, workspace));
  }
  // Returns it for columns, or rows, that are to be orthonormal.
  bool orthonormal(Matrix<const T, Space> q) {
    if (by_space()) return note(flat<const T, Space>(q), sums.basis);
    return is_orthonormal(sum_of_squares<Space, T>(stream.exec, flat<const T, Space>(q), workspace), d);
  }
  // Makes the verdict, after all numbers are noted and before anything is published.
  void judge() {
    if (by_space()) make_verdict<Space>(stream.exec, stream.refresh.checks, sums, d, verdict);
  }

  void publish(Matrix<const T, Space> from, Matrix<float, Space> to) {
    publish_values<Space, T>(stream.exec, verdict, flat<const T, Space>(from), flat<float, Space>(to));
  }
  // These publish what a job is for, where it is good: a basis by its eigenvalues, or a root and the basis that it is
  // in, where one is kept and there is one.
  bool publish_basis(Matrix<const T, Space> basis, Vector<const T, Space> values) {
    if (!orthonormal(basis) || !finite(values)) return false;
    judge();
    publish(basis, job.new_basis);
    return true;
  }
  bool publish_root(Matrix<const T, Space> basis, Matrix<const T, Space> root) {
    const bool has_basis = basis.extent(0) > 0;
    if (has_basis && !orthonormal(basis)) return false;
    judge();
    publish(root, job.root);
    if (has_basis && job.new_basis.extent(0) > 0) publish(basis, job.new_basis);
    return true;
  }

  RootTools<Space> tools() {
    RootTools<Space> tools{stream.exec, stream.gemm, stream.solver, workspace};
    tools.squares_of_root = sums.other;
    return tools;
  }

 private:
  bool note(Vector<const T, Space> x, Vector<double, Space>& chunks) {
    chunks = Vector<double, Space>(chunks.data(), chunk_count(x.extent(0)));
    squares_of_chunks<Space, T>(stream.exec, x, reduce_chunk, chunks);
    return true;
  }
};

}  // namespace sestina
