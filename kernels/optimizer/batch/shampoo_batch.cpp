#include "kernels/optimizer/batch/shampoo_batch.hpp"

#include "kernels/blas/matrix_passes.hpp"

namespace sestina {
namespace {

KOKKOS_INLINE_FUNCTION void filter_moment(const FilterRule& r, std::size_t n, const float* __restrict gradient,
                                          float* __restrict momentum, float* __restrict filtered) {
  for (std::size_t j = 0; j < n; ++j) {
    const float g = r.gradient * gradient[j], f = momentum[j];
    filtered[j] = (f + r.learn3 * (g - f)) * r.inv_bias1;
    momentum[j] = f + r.learn1 * (g - f);
  }
}

KOKKOS_INLINE_FUNCTION void filter_graft(const FilterRule& r, std::size_t n, const float* __restrict gradient,
                                         const float* __restrict filtered, float* __restrict second_moment,
                                         float* __restrict graft) {
  for (std::size_t j = 0; j < n; ++j) {
    const float g = r.gradient * gradient[j];
    const float v = second_moment[j] + (r.gain * g * g - r.forget * second_moment[j]);
    second_moment[j] = v;
    graft[j] = filtered[j] / (Kokkos::sqrt(v * r.inv_bias2) + r.eps);
  }
}

}  // namespace

template <class Space>
void filter(const Space& exec, const FilterRule& r, const FilterData<Space>& x) {
  for_elements(
      "filter", exec, x.gradient.extent(0), x.gradient.extent(1),
      KOKKOS_LAMBDA(std::size_t i, std::size_t begin, std::size_t end) {
        filter_moment(r, end - begin, &x.gradient(i, begin), &x.momentum(i, begin), &x.filtered(i, begin));
        if (r.second_moment)
          filter_graft(r, end - begin, &x.gradient(i, begin), &x.filtered(i, begin), &x.second_moment(i, begin),
                       &x.graft(i, begin));
      });
}

template <class Space>
void filter(const Space& exec, const FilterRule& r, const FlatBatch<Space>& batch, const FlatStacks& stacks,
            std::size_t filtered, std::size_t graft) {
  float *const filtered_at = stacks[filtered], *const graft_at = stacks[graft];
  for_flat_pieces(
      "filter", exec, batch, KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        for_runs_of(of, at, count, [&](std::size_t from, std::size_t to, std::size_t n) {
          filter_moment(r, n, of.gradient + from, of.momentum + from, filtered_at + to);
          if (r.second_moment)
            filter_graft(r, n, of.gradient + from, filtered_at + to, of.second_moment + from, graft_at + to);
        });
      });
}

template <class Space>
void make_graft_factor(const Space& exec, Vector<double, Space> squares) {
  const Kokkos::RangePolicy<Space> one(exec, 0, 1);
  Kokkos::parallel_for(
      "graft_factor", one, KOKKOS_LAMBDA(std::size_t) { squares(0) = graft_factor(squares(0), squares(1)); });
}

template <class Space>
void squares_of_stack(const Space& exec, const FlatBatch<Space>& batch, const FlatStacks& stacks, std::size_t stack,
                      Vector<double, Space> squares) {
  const float* const values = stacks[stack];
  sum_table_pieces<flat_piece, Space, FlatMatrix>(
      "graft_squares", exec, batch.table, squares,
      KOKKOS_LAMBDA(const FlatMatrix& of, std::size_t at, std::size_t count) {
        const float* const x = values + of.place + at;
        return lane_sum(count, [=](std::size_t i) { return square(x[i]); });
      });
}

template <class Space>
void make_graft_factors(const Space& exec, const FlatBatch<Space>& batch, const GraftScratch<Space>& scratch) {
  const Vector<double, Space> factors = scratch.factors;
  total_entries<2, Space, FlatMatrix>(
      "graft_factors", exec, batch.table, {scratch.graft.data(), scratch.direction.data()},
      KOKKOS_LAMBDA(const FlatMatrix& of) { return of.pieces(); },
      KOKKOS_LAMBDA(std::size_t i, const Kokkos::Array<double, 2>& squares) {
        factors(i) = graft_factor(squares[0], squares[1]);
      });
}

#define SESTINA_SHAMPOO_BATCH(Space)                                                                           \
  template void filter<Space>(const Space&, const FilterRule&, const FilterData<Space>&);                      \
  template void filter<Space>(const Space&, const FilterRule&, const FlatBatch<Space>&, const FlatStacks&,     \
                              std::size_t, std::size_t);                                                       \
  template void make_graft_factor<Space>(const Space&, Vector<double, Space>);                                 \
  template void squares_of_stack<Space>(const Space&, const FlatBatch<Space>&, const FlatStacks&, std::size_t, \
                                        Vector<double, Space>);                                                \
  template void make_graft_factors<Space>(const Space&, const FlatBatch<Space>&, const GraftScratch<Space>&);
SESTINA_INSTANTIATE_LANES(SESTINA_SHAMPOO_BATCH)

}  // namespace sestina
