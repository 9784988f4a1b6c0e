#include "core/diagnostics.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/base/random.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {
namespace {

// Sets x = minuend - kept x; cautious: kept is 1 for an x that minuend is not nearer to zero than.
template <class Exec, class A>
void subtract(const Exec& exec, Vector<const A, Exec> minuend, A kept, bool cautious, Vector<A, Exec> x) {
  Kokkos::parallel_for(
      "sestina::subtract", Kokkos::RangePolicy<Exec>(exec, 0, x.size()), KOKKOS_LAMBDA(const std::size_t i) {
        const A whole = minuend(i) - x(i);
        x(i) = cautious && whole * x(i) >= 0 ? whole : minuend(i) - kept * x(i);
      });
}

template <class Exec, class A>
void scale(const Exec& exec, A factor, Vector<A, Exec> x) {
  Kokkos::parallel_for(
      "sestina::scale", Kokkos::RangePolicy<Exec>(exec, 0, x.size()),
      KOKKOS_LAMBDA(const std::size_t i) { x(i) *= factor; });
}

}  // namespace

template <class Exec, class T>
WeightsBefore<Exec, T>::WeightsBefore(const std::vector<OwnedTensor<Exec, T>>& tensors) {
  std::size_t total = 0;
  for (const auto& tensor : tensors) {
    masters_.push_back(tensor.master);
    offset_.push_back(total);
    total += tensor.master.size();
  }
  values_ = decltype(values_)(Kokkos::view_alloc(Kokkos::WithoutInitializing, "sestina::weights_before"), total);
}

template <class Exec, class T>
void WeightsBefore<Exec, T>::keep(const Exec& exec) {
  for (std::size_t i = 0; i < masters_.size(); ++i)
    Kokkos::deep_copy(exec, Vector<Acc<T>, Exec>(values_.data() + offset_[i], masters_[i].size()), masters_[i]);
}

template <class Exec, class T>
Vector<Acc<T>, Exec> WeightsBefore<Exec, T>::movement(const Exec& exec, std::size_t i, double decay, bool cautious) {
  const Vector<Acc<T>, Exec> x(values_.data() + offset_[i], masters_[i].size());
  subtract<Exec, Acc<T>>(exec, masters_[i], static_cast<Acc<T>>(1 - decay), cautious, x);
  return x;
}

template <class Exec, class T>
TensorDiagnostics<Exec, T>::TensorDiagnostics(const Exec& exec, const std::vector<OwnedTensor<Exec, T>>& tensors)
    : tensors_(tensors), before_(tensors), gemm_(exec) {
  std::size_t right = 0, left = 0, largest = 0;
  for (const auto& tensor : tensors_) {
    right_offset_.push_back(right);
    right += static_cast<std::size_t>(tensor.spec.cols);
    left = std::max(left, static_cast<std::size_t>(tensor.spec.rows));
    largest = std::max(largest, tensor.master.size());
  }
  using Kokkos::view_alloc, Kokkos::WithoutInitializing;
  left_ = decltype(left_)(view_alloc(WithoutInitializing, "sestina::left_vector"), left);
  right_ = decltype(right_)(view_alloc(WithoutInitializing, "sestina::right_vectors"), right);
  const auto host = Kokkos::create_mirror_view(right_);
  for (std::size_t i = 0; i < right; ++i) host(i) = static_cast<Acc<T>>(normal(0, i));
  Kokkos::deep_copy(exec, right_, host);
  exec.fence();
  workspace_ = Workspace<Exec>(bytes_of<SumScratch<Exec>, Exec>(largest));
}

template <class Exec, class T>
void TensorDiagnostics<Exec, T>::after_update(const Exec& exec, std::vector<Values>& values) {
  values.clear();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Vector<Acc<T>, Exec> master = tensors_[i].master, change = before_.movement(exec, i);
    const double n = static_cast<double>(master.size()),
                 squares = sum_of_squares<Exec, Acc<T>>(exec, master, workspace_);
    const double update = std::sqrt(sum_of_squares<Exec, Acc<T>>(exec, change, workspace_) / n);
    values.push_back(
        {std::sqrt(squares / n), update, tensors_[i].spec.is_vector() ? std::sqrt(squares) : spectral_norm(exec, i)});
  }
}

// Runs power iteration on W^T W: sigma = |W x| for a unit x, x <- W^T W x / |...|.
template <class Exec, class T>
double TensorDiagnostics<Exec, T>::spectral_norm(const Exec& exec, std::size_t tensor) {
  using A = Acc<T>;
  const TensorSpec& spec = tensors_[tensor].spec;
  const auto rows = static_cast<std::size_t>(spec.rows), cols = static_cast<std::size_t>(spec.cols);
  const Matrix<const A, Exec> w(tensors_[tensor].master.data(), rows, cols);
  const Matrix<A, Exec> x(right_.data() + right_offset_[tensor], cols, 1), y(left_.data(), rows, 1);
  const Vector<A, Exec> flat_x(x.data(), cols), flat_y(y.data(), rows);
  double sigma = 0;
  for (int i = 0; i < power_iterations; ++i) {
    const double norm = std::sqrt(sum_of_squares<Exec, A>(exec, flat_x, workspace_));
    if (!(norm > 0)) return norm;  // a zero matrix, or NaN
    scale<Exec, A>(exec, static_cast<A>(1 / norm), flat_x);
    gemm_.template operator()<A, A>(Op::none, Op::none, A(1), w, x, A(0), y);
    sigma = std::sqrt(sum_of_squares<Exec, A>(exec, flat_y, workspace_));
    gemm_.template operator()<A, A>(Op::transpose, Op::none, A(1), w, y, A(0), x);
  }
  return sigma;
}

#define SESTINA_DIAGNOSTICS(Exec, T)     \
  template class WeightsBefore<Exec, T>; \
  template class TensorDiagnostics<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_DIAGNOSTICS)

}  // namespace sestina
