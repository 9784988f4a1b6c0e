// Element-wise layers between matrix products, each in one pass over memory; sums in Acc<T>. Shapes: N rows (tokens, B
// sequences of T), F intermediate, D hidden, h head dim.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// Computes y (N, F) = silu(gate) * up, where gate_up (N, 2F) holds gate in columns [0, F) and up in [F, 2F).
template <class Exec, class T>
void swiglu(const Exec&, Matrix<const T, Exec> gate_up, Matrix<T, Exec> y);
// Computes dgate_up (N, 2F) from dy (N, F); also writes y again, so that the forward pass need not keep it. dgate_up
// may be gate_up; y may be dy.
template <class Exec, class T>
void swiglu_backward(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> gate_up, Matrix<T, Exec> dgate_up,
                     Matrix<T, Exec> y);

// GELU in its exact form x Phi(x) ("gelu") or the tanh form ("gelu_new", "gelu_pytorch_tanh").
enum class GeluForm { exact, tanh };
template <class Exec, class T>
void gelu(const Exec&, GeluForm, Matrix<const T, Exec> x, Matrix<T, Exec> y);
// Computes dx from dy; also writes y again. dx may be x; y may be dy.
template <class Exec, class T>
void gelu_backward(const Exec&, GeluForm, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<T, Exec> dx,
                   Matrix<T, Exec> y);

// Computes y = max(x, 0)^2 (So et al. 2021); backward as gelu's.
template <class Exec, class T>
void relu_squared(const Exec&, Matrix<const T, Exec> x, Matrix<T, Exec> y);
template <class Exec, class T>
void relu_squared_backward(const Exec&, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<T, Exec> dx,
                           Matrix<T, Exec> y);

// add_bias adds bias (D) to every row of y (N, D); bias_backward adds the column sums of dy to dbias in a fixed order.
template <class Exec, class T>
void add_bias(const Exec&, Vector<const Acc<T>, Exec> bias, Matrix<T, Exec> y);
template <class Exec, class T>
void bias_backward(const Exec&, Matrix<const T, Exec> dy, Vector<Acc<T>, Exec> dbias, Workspace<Exec>&);

// Rotary position embedding in the rotate-half form of HF: the pair (i, i + h/2) of each head is rotated by the angle
// position * frequency_i. Row r of x is position r mod T.

// Turns x (N, heads*h) in place, heads = extent(1) / (2 * cosine.extent(1)); cosine, sine (>= T, h/2), T = sequence.
// The backward pass is the same turn with direction = -1.
template <class Exec, class T>
void rope(const Exec&, Matrix<const float, Exec> cosine, Matrix<const float, Exec> sine, int sequence, int direction,
          Matrix<T, Exec> x);

}  // namespace sestina
