// AdamW in one fused pass (Loshchilov & Hutter 2019, decay before the update, eps after bias correction), with weight
// w, gradient g, moments m and v:
//   w *= 1 - lr wd;  m = lerp(m, g, 1 - beta1);  v = lerp(v, g^2, 1 - beta2);
//   w -= (lr / bc1) m / (sqrt(v) / sqrt(bc2) + eps),  bc_i = 1 - beta_i^t.
// With cautious decay an element decays only where what is then subtracted has its sign, or one of both is 0.
#pragma once
#include "kernels/blas/coded_moments.hpp"
#include "kernels/blas/exec.hpp"

namespace sestina {

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  double bias_correction1 = 1, bias_correction2 = 1;  // bc1 and bc2 above: 1 - beta^t for update t
  double gradient_scale = 1;                          // clipping; g is multiplied by it
  // Nesterov's look-ahead (NAdam, Dozat 2016; Ajanthan et al. 2025 for delays) takes gradient_part g + momentum_part m
  // in the place of m / bc1.
  bool looks_ahead = false;
  double gradient_part = 0, momentum_part = 0;
  bool cautious = false;
  double* nonfinite = nullptr;  // see kernels/optimizer/matrix_update.hpp
};

// Updates master, m and v (n) from gradient (n), all in Acc<T>; weight (n) receives the rounded master weight; it may
// be empty (T == Acc<T> and the compute weights are the master weights).
template <class Exec, class T>
void adamw(const Exec&, const AdamWStep&, Vector<const Acc<T>, Exec> gradient, Vector<Acc<T>, Exec> master,
           Vector<Acc<T>, Exec> m, Vector<Acc<T>, Exec> v, Vector<T, Exec> weight);

// Updates several runs of elements in one launch, for a table of them that lies in the memory of the space. Each is cut
// into pieces of adamw_piece elements; first: number of its first one, from 0 on without gaps. pieces: of all. The bits
// are those of one launch for each run.
inline constexpr std::size_t adamw_piece = 8192;
template <class T>
struct AdamWRun {
  const Acc<T>* gradient = nullptr;
  Acc<T>*master = nullptr, *m = nullptr, *v = nullptr;
  T* weight = nullptr;  // null where the master weights are computed with
  std::size_t elements = 0, first = 0;
};
template <class Exec, class T>
void adamw(const Exec&, const AdamWStep&, Vector<const AdamWRun<T>, Exec> runs, std::size_t pieces);

// Updates with moments in 8 bits. The step sees the moments before they are rounded. The vectors are (n), row-major.
template <class Exec, class T>
void adamw(const Exec&, const AdamWStep&, Vector<const Acc<T>, Exec> gradient, Vector<Acc<T>, Exec> master,
           const CodedMoments<Exec>&, Vector<T, Exec> weight);

}  // namespace sestina
