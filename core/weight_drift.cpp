#include "core/weight_drift.hpp"

#include "kernels/blas/chunk_sums.hpp"

namespace sestina {
namespace {

constexpr std::size_t drift_piece = 1 << 16;  // elements of one sum

std::size_t pieces_of(const TensorSpec& spec) {  // what is frozen does not move
  return !spec.trainable ? 0 : (static_cast<std::size_t>(spec.elements()) + drift_piece - 1) / drift_piece;
}

template <class Exec, class S>
static void square_differences(const Exec& exec, const S* newest, const S* used, std::size_t n,
                               Vector<double, Exec> moved, Vector<double, Exec> weight) {
  sum_pieces<Exec>(
      "moved", exec, n, drift_piece, moved, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) {
          const double d = static_cast<double>(newest[begin + i]) - static_cast<double>(used[begin + i]);
          return d * d;
        });
      });
  sum_pieces<Exec>(
      "weight", exec, n, drift_piece, weight, KOKKOS_LAMBDA(std::size_t begin, std::size_t count) {
        return lane_sum(count, [=](std::size_t i) {
          const double w = static_cast<double>(newest[begin + i]);
          return w * w;
        });
      });
}

}  // namespace

template <class Exec, class T>
DriftMeter<Exec, T>::DriftMeter(const Arena<Exec, T>& arena) : arena_(arena) {
  std::size_t pieces = 0;
  for (const TensorSpec& spec : arena.specs()) pieces += pieces_of(spec);
  sums_ = HostValues<Exec>("sestina::drift", 2 * pieces);
}

template <class Exec, class T>
WeightDrift DriftMeter<Exec, T>::from(const Exec& exec, const WeightVersions<Exec, T>& versions, std::int64_t version) {
  const std::size_t half = sums_.size() / 2;
  std::size_t used = 0;
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const TensorSpec& spec = arena_.specs()[i];
    if (!spec.trainable || !arena_.layout().tensors[i].counted) continue;
    const std::size_t pieces = pieces_of(spec), n = static_cast<std::size_t>(spec.elements());
    const Vector<double, Exec> moved = sums_.at(used, pieces), weight = sums_.at(half + used, pieces);
    if (spec.is_vector())
      square_differences<Exec, Acc<T>>(exec, arena_.vector(i), versions.vector_of(version, i).data(), n, moved, weight);
    else
      square_differences<Exec, T>(exec, arena_.matrix(i), versions.matrix_of(version, i).data(), n, moved, weight);
    used += pieces;
  }
  sums_.fetch(exec, "drift");
  WeightDrift drift;
  for (std::size_t i = 0; i < used; ++i) {
    drift.moved += sums_[i];
    drift.weight += sums_[half + i];
  }
  return drift;
}

#define SESTINA_DRIFT(Exec, T) template class DriftMeter<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_DRIFT)

}  // namespace sestina
