// Q-GaLore's lazy projector (arXiv 2407.08296, section 3.2): one that hardly turns is renewed half as often. Behind
// each refresh the new first vector is compared with the one before it; when the mean |cosine| of the last five is at
// least `lazy_cosine`, the period doubles. The released code takes the cosine with its sign, which a decomposition is
// free to choose; here the sign does not count. All of it is state, so that a run that resumes goes on alike.
#pragma once
#include <cmath>

#include "core/optimizer/kinds/matrix_state.hpp"
#include "core/optimizer/kinds/sides.hpp"
#include "kernels/blas/matrix_copy.hpp"
#include "kernels/optimizer/columns.hpp"

namespace sestina {

template <class Space>
class LazyPeriod {
 public:
  LazyPeriod() = default;  // never longer
  LazyPeriod(MatrixState<Space>& state, double threshold)
      : threshold_(threshold),
        before_(state.matrix("first_vector")),
        cosines_(&state.counter("cosines")),
        refreshes_(&state.counter("refreshes")),
        doublings_(&state.counter("doublings")),
        sums_("sestina::cosine", 3) {}

  std::int64_t period(std::int64_t every) const { return refreshes_ == nullptr ? every : every << *doublings_; }

  // Behind a refresh, with the first vector (n, 1) of the new projector. Waits for the space.
  void renewed(const Space& exec, Matrix<const float, Space> first) {
    if (refreshes_ == nullptr) return;
    if (*refreshes_ > 0) {
      cosines_[(*refreshes_ - 1) % lazy_window] = cosine(exec, first);
      if (*refreshes_ >= lazy_window && mean() >= threshold_ && *doublings_ < most_doublings) ++*doublings_;
    }
    copy_matrix<Space>(exec, false, first, before_);
    ++*refreshes_;
  }

 private:
  static constexpr double unit = 1e9;                 // counters are integers: cosines in parts of this
  static constexpr std::int64_t most_doublings = 20;  // longer than any run

  std::int64_t cosine(const Space& exec, Matrix<const float, Space> first) {
    const Matrix<const float, Space> before = before_;
    column_dots<Space, float>(exec, first, before, sums_.at(0));
    column_dots<Space, float>(exec, first, first, sums_.at(1));
    column_dots<Space, float>(exec, before, before, sums_.at(2));
    sums_.fetch(exec, "cosine");
    const double norms = std::sqrt(sums_[1] * sums_[2]);
    return norms > 0 ? std::llround(unit * std::abs(sums_[0]) / norms) : 0;
  }
  double mean() const {
    double sum = 0;
    for (std::int64_t i = 0; i < lazy_window; ++i) sum += static_cast<double>(cosines_[i]);
    return sum / (unit * static_cast<double>(lazy_window));
  }

  double threshold_ = 0;
  Matrix<float, Space> before_;      // (n, 1)
  std::int64_t* cosines_ = nullptr;  // the last ones, in a ring
  std::int64_t *refreshes_ = nullptr, *doublings_ = nullptr;
  HostValues<Space> sums_;
};

}  // namespace sestina
