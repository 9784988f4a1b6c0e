// B^-p of a symmetric positive semi-definite matrix K (d, d), three ways, where B = scale K + eps I (regularised as
// RootRule says). Every function returns false when it found no finite root. T is float or double. Matrices have no
// padding. All calls fence, unless told not to (RootTools).
#pragma once
#include "kernels/blas/gemm.hpp"
#include "kernels/optimizer/eigen.hpp"

namespace sestina {

struct RootRule {
  double exponent = 0.25;  // p
  double scale = 1;        // K is multiplied by it first (bias correction)
  double eps = 1e-12;
  // true: eps I is added to scale K; when the smallest eigenvalue then lies below eps, all are moved up until it is
  // eps. false: eps - min(0, smallest) is added to the eigenvalues of scale K.
  bool perturb_before = true;
  double tolerance = 0.01;  // inverse_root_qr: off-diagonal norm relative to the whole
  int max_iterations = 1;   // inverse_root_qr, inverse_root_newton; 0: at most 100
};

// The tools that the three work with.
template <class Exec>
struct RootTools {
  const Exec& exec;
  Gemm<Exec>& gemm;
  Solver<Exec>& solver;
  Workspace<Exec>& workspace;
  // With room for the squares of the root by chunks (squares_of_chunks) nothing waits, inverse_root_newton aside, and
  // true is returned: whoever judges the root has these, and what the solver reports. With (0) each call decides
  // itself.
  Vector<double, Exec> squares_of_root = {};
};

// Computes the root by eigen-decomposition. basis (d, d) receives the eigenvectors, by falling eigenvalue.
template <class Exec, class T>
bool inverse_root_eigh(RootTools<Exec>, const RootRule&, Matrix<const T, Exec> factor, Matrix<T, Exec> basis,
                       Matrix<T, Exec> root);

// Its two parts, between which whoever calls decomposes B, alone or with others: B (d, d) of a factor, and the root
// from the eigenvectors and eigenvalues of B.
template <class Exec, class T>
void root_matrix(RootTools<Exec>, const RootRule&, Matrix<const T, Exec> factor, Matrix<T, Exec> b);
template <class Exec, class T>
bool root_of_eigenvalues(RootTools<Exec>, const RootRule&, Matrix<const T, Exec> basis, Vector<const T, Exec> values,
                         Matrix<T, Exec> root);
template <class Exec, class T>
void declare_root_of_eigenvalues(Workspace<Exec>&, std::size_t d);

// Computes the root from an approximate eigenbasis Q, kept up to date by subspace iteration: as long as Q^T B Q is not
// diagonal within the tolerance, and for max_iterations at most, Q = qr(B Q sorted by falling q^T B q). Then B^-p takes
// q^T B q for eigenvalues. basis (d, d) is Q: in and out.
template <class Exec, class T>
bool inverse_root_qr(RootTools<Exec>, const RootRule&, Matrix<const T, Exec> factor, Matrix<T, Exec> basis,
                     Matrix<T, Exec> root);

// Computes the root by coupled Newton iteration, with matrix products only: p = 1 / r with r = 1, 2, ... Eigenvalues
// below the rounding of T cannot be told from zero and would make it diverge: eps is raised to that.
template <class Exec, class T>
bool inverse_root_newton(RootTools<Exec>, const RootRule&, Matrix<const T, Exec> factor, Matrix<T, Exec> root);
// Returns r, or 0 when p is not one of 1, 1/2, 1/3, ...
int newton_order(double exponent);

// Takes what any of the three takes.
template <class Exec, class T>
void declare_inverse_root(Workspace<Exec>&, std::size_t d);

}  // namespace sestina
