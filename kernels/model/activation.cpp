#include "kernels/model/activation.hpp"

#include "kernels/blas/math.hpp"
#include "kernels/blas/row_elements.hpp"

namespace sestina {
namespace {

// Phi(x), the share of the input that GELU lets through, and the slope of x Phi(x) (Hendrycks & Gimpel 2016).
template <class A>
struct Gate {
  A open, slope;
};

template <class A>
KOKKOS_FORCEINLINE_FUNCTION Gate<A> gelu_exact(A x) {
  const Normal<A> at = normal(x);
  return {at.below, at.below + x * A(0.39894228040143267794) * at.density};
}
// With u = sqrt(2/pi) (x + 0.044715 x^3): (1 + tanh u) / 2 = sigmoid(2u).
template <class A>
KOKKOS_FORCEINLINE_FUNCTION Gate<A> gelu_tanh(A x) {
  constexpr A twice = A(1.59576912160573071176), cubic = A(0.044715);
  const A open = sigmoid(twice * (x + cubic * x * x * x));
  return {open, open + x * open * (A(1) - open) * twice * (A(1) + A(3) * cubic * x * x)};
}

}  // namespace

template <class Exec, class T>
void swiglu(const Exec& exec, Matrix<const T, Exec> gate_up, Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int f = static_cast<int>(y.extent(1));
  for_rows(
      "swiglu", exec, y.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T *gate = row_of(gate_up, row), *up = gate + f;
        T* out = row_of(y, row);
        each_element(
            lane, f,
            [](const T& a, const T& b, T& to) {
              const A g = A(a);
              to = T(g * sigmoid(g) * A(b));
            },
            gate, up, Written(out));
      });
}

template <class Exec, class T>
void swiglu_backward(const Exec& exec, Matrix<const T, Exec> dy, Matrix<const T, Exec> gate_up,
                     Matrix<T, Exec> dgate_up, Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int f = static_cast<int>(y.extent(1));
  for_rows(
      "swiglu_back", exec, y.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T *gate = row_of(gate_up, row), *up = gate + f, *grad = row_of(dy, row);
        T *dgate = row_of(dgate_up, row), *dup = dgate + f, *out = row_of(y, row);
        each_element(
            lane, f,
            [](const T& a, const T& b, const T& d_y, T& d_a, T& d_b, T& to) {
              const A g = A(a), u = A(b), d = A(d_y), s = sigmoid(g);
              const A silu = g * s;
              d_a = T(d * u * (s + silu * (A(1) - s)));
              d_b = T(d * silu);
              to = T(silu * u);
            },
            gate, up, grad, Written(dgate), Written(dup), Written(out));
      });
}

template <class Exec, class T>
void gelu(const Exec& exec, GeluForm form, Matrix<const T, Exec> x, Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int f = static_cast<int>(x.extent(1));
  const bool exact = form == GeluForm::exact;
  for_rows(
      "gelu", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T* in = row_of(x, row);
        T* out = row_of(y, row);
        if (exact) {
          each_element(
              lane, f, [](const T& a, T& to) { to = T(A(a) * gelu_exact(A(a)).open); }, in, Written(out));
        } else {
          each_element(
              lane, f, [](const T& a, T& to) { to = T(A(a) * gelu_tanh(A(a)).open); }, in, Written(out));
        }
      });
}

template <class Exec, class T>
void gelu_backward(const Exec& exec, GeluForm form, Matrix<const T, Exec> dy, Matrix<const T, Exec> x,
                   Matrix<T, Exec> dx, Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int f = static_cast<int>(x.extent(1));
  const bool exact = form == GeluForm::exact;
  for_rows(
      "gelu_back", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T *in = row_of(x, row), *grad = row_of(dy, row);
        T *out = row_of(y, row), *dout = row_of(dx, row);
        const auto back = [](Gate<A> gate, A value, A d, T& d_a, T& to) {
          d_a = T(d * gate.slope);
          to = T(value * gate.open);
        };
        if (exact) {
          each_element(
              lane, f, [&](const T& a, const T& d_y, T& d_a, T& to) { back(gelu_exact(A(a)), A(a), A(d_y), d_a, to); },
              in, grad, Written(dout), Written(out));
        } else {
          each_element(
              lane, f, [&](const T& a, const T& d_y, T& d_a, T& to) { back(gelu_tanh(A(a)), A(a), A(d_y), d_a, to); },
              in, grad, Written(dout), Written(out));
        }
      });
}

template <class Exec, class T>
void relu_squared(const Exec& exec, Matrix<const T, Exec> x, Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int f = static_cast<int>(x.extent(1));
  for_rows(
      "relu_squared", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T* in = row_of(x, row);
        T* out = row_of(y, row);
        each_element(
            lane, f,
            [](const T& a, T& to) {
              const A value = A(a), open = value < A(0) ? A(0) : value;  // a NaN stays one
              to = T(open * open);
            },
            in, Written(out));
      });
}

template <class Exec, class T>
void relu_squared_backward(const Exec& exec, Matrix<const T, Exec> dy, Matrix<const T, Exec> x, Matrix<T, Exec> dx,
                           Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int f = static_cast<int>(x.extent(1));
  for_rows(
      "relu_squared_back", exec, x.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const T *in = row_of(x, row), *grad = row_of(dy, row);
        T *out = row_of(y, row), *dout = row_of(dx, row);
        each_element(
            lane, f,
            [](const T& a, const T& d_y, T& d_a, T& to) {
              const A value = A(a), open = value < A(0) ? A(0) : value, d = A(d_y);
              d_a = T(A(2) * d * open);
              to = T(open * open);
            },
            in, grad, Written(dout), Written(out));
      });
}

template <class Exec, class T>
void add_bias(const Exec& exec, Vector<const Acc<T>, Exec> bias, Matrix<T, Exec> y) {
  using A = Acc<T>;
  const int d = static_cast<int>(y.extent(1));
  for_rows(
      "add_bias", exec, y.extent(0), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t row) {
        const A* b = bias.data();
        T* out = row_of(y, row);
        each_element(
            lane, d, [](A shift, T& to) { to = T(A(to) + shift); }, b, out);
      });
}

template <class Exec, class T>
void bias_backward(const Exec& exec, Matrix<const T, Exec> dy, Vector<Acc<T>, Exec> dbias, Workspace<Exec>& workspace) {
  using A = Acc<T>;
  const int d = static_cast<int>(dy.extent(1));
  const auto n = static_cast<std::int64_t>(dy.extent(0));
  if (n == 0) return;
  auto frame = workspace.frame();
  const Matrix<A, Exec> partial = RowSumScratch<Exec, A>(workspace, dy.extent(0), dy.extent(1)).partial;
  for_rows(
      "bias_back", exec, row_chunks(n), KOKKOS_LAMBDA(const RowLane<Exec>& lane, std::int64_t chunk) {
        A* sum = row_of(partial, chunk);
        each(lane, d, [&](int j) { sum[j] = A(0); });
        sync(lane);
        const std::int64_t end = (chunk + 1) * row_chunk < n ? (chunk + 1) * row_chunk : n;
        for (std::int64_t row = chunk * row_chunk; row < end; ++row) {
          const T* grad = row_of(dy, row);
          each_element(
              lane, d, [](const T& d_y, A& to) { to += A(d_y); }, grad, sum);
          sync(lane);
        }
      });
  add_chunks(exec, partial, dbias);
}

#define SESTINA_ACTIVATION(Exec, T)                                                                                  \
  template void swiglu<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<T, Exec>);                                \
  template void swiglu_backward<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>, Matrix<T, Exec>, \
                                         Matrix<T, Exec>);                                                           \
  template void gelu<Exec, T>(const Exec&, GeluForm, Matrix<const T, Exec>, Matrix<T, Exec>);                        \
  template void gelu_backward<Exec, T>(const Exec&, GeluForm, Matrix<const T, Exec>, Matrix<const T, Exec>,          \
                                       Matrix<T, Exec>, Matrix<T, Exec>);                                            \
  template void relu_squared<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<T, Exec>);                          \
  template void relu_squared_backward<Exec, T>(const Exec&, Matrix<const T, Exec>, Matrix<const T, Exec>,            \
                                               Matrix<T, Exec>, Matrix<T, Exec>);                                    \
  template void add_bias<Exec, T>(const Exec&, Vector<const Acc<T>, Exec>, Matrix<T, Exec>);                         \
  template void bias_backward<Exec, T>(const Exec&, Matrix<const T, Exec>, Vector<Acc<T>, Exec>, Workspace<Exec>&);
SESTINA_INSTANTIATE(SESTINA_ACTIVATION)

}  // namespace sestina
