#include "core/optimizer/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/blas/sums.hpp"

namespace sestina {

template <class Exec, class T>
GradientNorm<Exec, T>::GradientNorm(const Arena<Exec, T>& arena, int notes) {
  std::size_t slots = 0;
  std::vector<ChunkedVector<Acc<T>>> table;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorHolding& tensor = arena.layout().tensors[i];
    const auto rows = static_cast<std::size_t>(chunk_rows(tensor.local));
    const auto chunks = [&](std::int64_t n) { return (static_cast<std::size_t>(n) + rows - 1) / rows; };
    first_slot_.push_back(slots);
    if (tensor.saved && tensor.owned_rows() > 0) {
      Part part;
      const Vector<const Acc<T>, Exec> gradient = arena.owned_gradient(i);
      table.push_back(
          {gradient.data(), gradient.size(), rows * static_cast<std::size_t>(tensor.local.cols), partials_});
      part.chunks = chunks(tensor.owned_rows());
      part.partial = partials_;
      part.slot = slots + (tensor.row_sharded ? chunks(tensor.owned_begin) : 0);
      part.row_sharded = tensor.row_sharded;
      partials_ += part.chunks;
      parts_.push_back(part);
    }
    // Every rank has places for experts that others hold, too.
    slots += tensor.row_sharded ? chunks(tensor.whole.expert < 0 ? tensor.local.rows : tensor.whole.rows) : 1;
  }
  first_slot_.push_back(slots);
  squares_.resize(slots + 1);  // the flag is after them
  by_tensor_.resize(arena.size() + 1);
  table_ = table_in_space<Exec>("sestina::table of squares", table);
  values_ = HostValues<Exec>("sestina::squares", partials_ + static_cast<std::size_t>(notes) + 1);
}

template <class Exec, class T>
std::vector<double>& GradientNorm<Exec, T>::squares(const Exec& exec) {
  squares_of_chunks<Exec, Acc<T>>(exec, table_, values_.at(0, partials_));
  values_.fetch(exec, "norm");
  std::fill(squares_.begin(), squares_.end(), 0.0);
  for (const Part& part : parts_)
    for (std::size_t c = 0; c < part.chunks; ++c)
      squares_[part.slot + (part.row_sharded ? c : 0)] += values_[part.partial + c];
  squares_.back() = values_[values_.size() - 1];
  return squares_;
}

template <class Exec, class T>
std::vector<double>& GradientNorm<Exec, T>::by_tensor() {
  for (std::size_t i = 0; i + 1 < by_tensor_.size(); ++i) {
    by_tensor_[i] = 0;
    for (std::size_t slot = first_slot_[i]; slot < first_slot_[i + 1]; ++slot) by_tensor_[i] += squares_[slot];
  }
  by_tensor_.back() = squares_.back();
  return by_tensor_;
}

template <class Exec, class T>
double GradientNorm<Exec, T>::norm() const {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < by_tensor_.size(); ++i) sum += by_tensor_[i];
  return std::sqrt(sum);
}

#define SESTINA_GRADIENT_NORM(Exec, T) template class GradientNorm<Exec, T>;
SESTINA_INSTANTIATE(SESTINA_GRADIENT_NORM)

namespace {

constexpr std::size_t cosine_piece = 1 << 16;  // elements of one sum

template <class Exec, class A>
static void products(const Exec& exec, Vector<const A, Exec> x, Vector<const A, Exec> y, Vector<double, Exec> sums) {
  const A *a = x.data(), *b = y.data();
  sum_pieces<Exec>(
      "products", exec, x.extent(0), cosine_piece, sums, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) {
          return static_cast<double>(a[begin + i]) * static_cast<double>(b[begin + i]);
        });
      });
}

}  // namespace

template <class Exec, class T>
GradientCosine<Exec, T>::GradientCosine(const Arena<Exec, T>& arena)
    : gradients_(arena.gradients()),
      kept_("sestina::fresh_gradient", gradients_.size()),
      sums_("sestina::drift", 3 * ((gradients_.size() + cosine_piece - 1) / cosine_piece)) {}

template <class Exec, class T>
void GradientCosine<Exec, T>::keep(const Exec& exec) {
  convert<Exec, Acc<T>, Acc<T>>(exec, gradients_, kept_);
}

template <class Exec, class T>
double GradientCosine<Exec, T>::with_kept(const Exec& exec) {
  const Vector<const Acc<T>, Exec> now = gradients_, then = kept_;
  const std::size_t n = sums_.size() / 3;
  products<Exec, Acc<T>>(exec, now, then, sums_.at(0, n));
  products<Exec, Acc<T>>(exec, now, now, sums_.at(n, n));
  products<Exec, Acc<T>>(exec, then, then, sums_.at(2 * n, n));
  sums_.fetch(exec, "cosine");
  double sum[3] = {};
  for (std::size_t i = 0; i < sums_.size(); ++i) sum[i / n] += sums_[i];
  return sum[0] / std::sqrt(sum[1] * sum[2]);
}

#define SESTINA_COSINE(Exec, T) template class GradientCosine<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_COSINE)

}  // namespace sestina
