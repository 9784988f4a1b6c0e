#include "core/optimizer/gradient_norm.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/blas/sums.hpp"

namespace sestina {

template <class Exec, class T>
GradientNorm<Exec, T>::GradientNorm(const Arena<Exec, T>& arena, int notes) {
  std::size_t slots = 0;
  for (std::size_t i = 0; i < arena.size(); ++i) {
    const TensorHolding& tensor = arena.layout().tensors[i];
    const auto rows = static_cast<std::size_t>(chunk_rows(tensor.local));
    const auto chunks = [&](std::int64_t n) { return (static_cast<std::size_t>(n) + rows - 1) / rows; };
    first_slot_.push_back(slots);
    if (tensor.saved && tensor.owned_rows() > 0) {
      Part part;
      part.tensor = i;
      part.chunks = chunks(tensor.owned_rows());
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
  values_ = HostValues<Exec>("sestina::squares", partials_ + static_cast<std::size_t>(notes) + 1);
  divide(arena, std::vector<std::size_t>(arena.size()));
}

// Chunks of a set lie together.
template <class Exec, class T>
void GradientNorm<Exec, T>::divide(const Arena<Exec, T>& arena, const std::vector<std::size_t>& set_of) {
  sets_.assign(set_of.empty() ? 1 : *std::max_element(set_of.begin(), set_of.end()) + 1, {});
  std::size_t partial = 0;
  for (std::size_t number = 0; number < sets_.size(); ++number) {
    Set& set = sets_[number];
    set.partial = partial;
    std::vector<ChunkedVector<Acc<T>>> table;
    for (Part& part : parts_) {
      if (set_of[part.tensor] != number) continue;
      const TensorHolding& tensor = arena.layout().tensors[part.tensor];
      const Vector<const Acc<T>, Exec> gradient = arena.owned_gradient(part.tensor);
      table.push_back({gradient.data(), gradient.size(),
                       static_cast<std::size_t>(chunk_rows(tensor.local) * tensor.local.cols), set.chunks});
      part.partial = partial;
      partial += part.chunks;
      set.chunks += part.chunks;
    }
    set.table = table_in_space<Exec>("sestina::table of squares", table);
  }
}

template <class Exec, class T>
void GradientNorm<Exec, T>::take(const Exec& exec, std::size_t number) {
  Set& set = sets_[number];
  squares_of_chunks<Exec, Acc<T>>(exec, set.table, values_.at(set.partial, set.chunks));
  values_.fetch(exec, "norm of a part");
  set.taken = true;
}

template <class Exec, class T>
double GradientNorm<Exec, T>::taken(std::size_t tensor) const {
  const auto part = std::lower_bound(parts_.begin(), parts_.end(), tensor,
                                     [](const Part& p, std::size_t number) { return p.tensor < number; });
  double sum = 0;
  if (part == parts_.end() || part->tensor != tensor) return sum;
  for (std::size_t c = 0; c < part->chunks; ++c) sum += values_[part->partial + c];
  return sum;
}

template <class Exec, class T>
std::vector<double>& GradientNorm<Exec, T>::squares(const Exec& exec) {
  for (Set& set : sets_)
    if (!std::exchange(set.taken, false))
      squares_of_chunks<Exec, Acc<T>>(exec, set.table, values_.at(set.partial, set.chunks));
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
