// AdamW in one fused pass (Loshchilov & Hutter 2019, decay before the update, eps after bias correction), with weight
// w, gradient g, moments m and v:
//   w *= 1 - lr wd;  m = lerp(m, g, 1 - beta1);  v = lerp(v, g^2, 1 - beta2);
//   w -= (lr / bc1) m / (sqrt(v) / sqrt(bc2) + eps),  bc_i = 1 - beta_i^t.
// With cautious decay an element decays only where what is then subtracted has its sign, or one of both is 0.
// And what this and other elementwise rules (element_rules.hpp) are applied to: runs of elements that share their
// numbers, in one launch for each run or for all of a table.
#pragma once
#include <initializer_list>

#include "kernels/base/error.hpp"
#include "kernels/blas/coded_moments.hpp"
#include "kernels/blas/exec.hpp"
#include "kernels/blas/table_passes.hpp"

namespace sestina {

// Elements that are adjacent in the memory of a space, of tensors that share their numbers. In a table each is cut into
// pieces of run_piece elements; first: number of its first one, from 0 on without gaps.
inline constexpr std::size_t run_piece = 8192;
template <class T>
struct ElementRun {
  const Acc<T>* gradient = nullptr;
  Acc<T>* master = nullptr;
  T* weight = nullptr;           // receives the rounded master weight; null where the master weights are computed with
  Acc<T>* state[3] = {nullptr};  // the fields of the rule, in its order
  std::size_t elements = 0, first = 0;
  std::size_t pieces() const { return (elements + run_piece - 1) / run_piece; }
};

// Runs in the memory of the space (table_in_space), and the pieces of all.
template <class Exec, class T>
struct ElementRuns {
  Vector<const ElementRun<T>, Exec> table;
  std::size_t pieces = 0;
};

// Returns a run of vectors (n); weight may be empty. Error where lengths differ.
template <class Exec, class T>
ElementRun<T> element_run(Vector<const Acc<T>, Exec> gradient, Vector<Acc<T>, Exec> master, Vector<T, Exec> weight,
                          std::initializer_list<Vector<Acc<T>, Exec>> state) {
  const std::size_t n = gradient.extent(0);
  ElementRun<T> run{.gradient = gradient.data(), .master = master.data(), .elements = n};
  SESTINA_REQUIRE(master.extent(0) == n && (weight.extent(0) == n || weight.extent(0) == 0),
                  "gradient of {}, master {}, weight {}", n, master.extent(0), weight.extent(0));
  if (weight.extent(0) > 0) run.weight = weight.data();
  SESTINA_REQUIRE(state.size() <= 3, "{} fields of state", state.size());
  std::size_t field = 0;
  for (const auto& values : state) {
    SESTINA_REQUIRE(values.extent(0) == n, "gradient of {}, state of {}", n, values.extent(0));
    run.state[field++] = values.data();
  }
  return run;
}

// Call body(run, at, count) for elements at, ..., at + count of a run, or of each run of a table: on the host for a
// piece at once, long enough to vectorise and to stream, short enough to balance; on a device for single elements. The
// bits are the same either way.
template <class T, class Exec, class Body>
static void for_elements_of(const char* label, const Exec& exec, const ElementRun<T>& run, const Body& body) {
  constexpr std::size_t length = is_host<Exec> ? run_piece : 1;
  const Kokkos::RangePolicy<Exec> pieces(exec, 0, (run.elements + length - 1) / length);
  Kokkos::parallel_for(
      label, pieces, KOKKOS_LAMBDA(std::size_t piece) {
        const std::size_t at = piece * length;
        body(run, at, Kokkos::min(length, run.elements - at));
      });
}
template <class T, class Exec, class Body>
static void for_elements_of(const char* label, const Exec& exec, const ElementRuns<Exec, T>& runs, const Body& body) {
  if (runs.pieces > 0) for_pieces<run_piece, Exec, ElementRun<T>>(label, exec, runs.table, runs.pieces, body);
}

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

// Elements whose moments are in 8 bits. The arrays are row-major.
template <class T>
struct CodedRun : MomentArrays {
  const Acc<T>* gradient = nullptr;
  Acc<T>* master = nullptr;
  T* weight = nullptr;  // null where the master weights are computed with
};
// Runs in the memory of the space (table_in_space), all in blocks of this size, and the blocks of all.
template <class Exec, class T>
struct CodedRuns {
  Vector<const CodedRun<T>, Exec> table;
  std::size_t block = 0, blocks = 0;
};
// Returns a run of vectors (n) and their moments; weight may be empty. Error where lengths differ.
template <class Exec, class T>
CodedRun<T> coded_run(Vector<const Acc<T>, Exec> gradient, Vector<Acc<T>, Exec> master, Vector<T, Exec> weight,
                      const CodedMoments<Exec>& moments) {
  const ElementRun<T> run = element_run<Exec, T>(gradient, master, weight, {});
  SESTINA_REQUIRE(moments.m.size() == run.elements, "gradient of {}, moments {}", run.elements, moments.m.size());
  return {moments.arrays(), run.gradient, run.master, run.weight};
}

// Updates master weights and the moments m and v (of an ElementRun the two fields of state) from gradients, all in
// Acc<T>. Runs: an ElementRun<T> or a CodedRun<T>; ElementRuns<Exec, T> or CodedRuns<Exec, T>, which are one launch
// with the same bits. A step with moments in 8 bits sees them before they are rounded.
template <class Exec, class T, class Runs>
void adamw(const Exec&, const AdamWStep&, const Runs&);

}  // namespace sestina
