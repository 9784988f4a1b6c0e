#include "core/delay.hpp"

#include <cmath>

#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/delay_correction.hpp"

namespace sestina {

template <class Exec, class T>
WeightVersions<Exec, T>::WeightVersions(const ModelConfig& config, LayerRange range, const Arena<Exec, T>& arena,
                                        int depth)
    : arena_(arena) {
  if (depth == 0) return;
  for (const TensorSpec& spec : arena.specs()) {  // tensors that follow one another stay adjacent
    std::size_t& end = spec.is_vector() ? vectors_in_one_ : matrices_in_one_;
    if (!spec.trainable) {
      offset_.push_back(0);
      continue;
    }
    if (!spec.follows) end = aligned_elements(end);
    offset_.push_back(end);
    end += static_cast<std::size_t>(spec.elements());
  }
  matrices_in_one_ = aligned_elements(matrices_in_one_);
  vectors_in_one_ = aligned_elements(vectors_in_one_);
  matrices_ = decltype(matrices_)("sestina::weight_versions", static_cast<std::size_t>(depth) * matrices_in_one_);
  vectors_ = decltype(vectors_)("sestina::vector_versions", static_cast<std::size_t>(depth) * vectors_in_one_);
  views_.resize(static_cast<std::size_t>(depth));
  for (int v = 0; v < depth; ++v)
    views_[static_cast<std::size_t>(v)] = weights_at<Exec, T>(
        config, range, arena.specs(), [&](std::size_t i) { return matrix(v, i); },
        [&](std::size_t i) { return vector(v, i); },
        [&](std::size_t i) -> void* {
          const TensorSpec& spec = arena.specs()[i];
          return has_matrix(spec)   ? matrix(v, i)
                 : has_vector(spec) ? static_cast<void*>(vector(v, i))
                                    : arena.frozen(i);
        });
}

// Copies the weights; runs of tensors that are adjacent both in the arena and in the copy go in one call.
template <class Exec, class T>
void WeightVersions<Exec, T>::keep(const Exec& exec, std::int64_t version) {
  if (views_.empty()) return;
  const std::vector<TensorSpec>& specs = arena_.specs();
  for (std::size_t i = 0; i < specs.size();) {
    if (!specs[i].trainable) {
      ++i;
      continue;
    }
    std::size_t end = i + 1, n = static_cast<std::size_t>(specs[i].elements());
    const auto adjoins = [&](std::size_t j) {
      return specs[j].trainable && specs[j].is_vector() == specs[i].is_vector() && offset_[j] == offset_[i] + n &&
             (specs[i].is_vector() ? arena_.vector(j) == arena_.vector(i) + n
                                   : arena_.matrix(j) == arena_.matrix(i) + n);
    };
    for (; end < specs.size() && adjoins(end); ++end) n += static_cast<std::size_t>(specs[end].elements());
    if (specs[i].is_vector())
      convert<Exec, Acc<T>, Acc<T>>(exec, Vector<const Acc<T>, Exec>(arena_.vector(i), n),
                                    Vector<Acc<T>, Exec>(vector(version, i), n));
    else
      convert<Exec, T, T>(exec, Vector<const T, Exec>(arena_.matrix(i), n), Vector<T, Exec>(matrix(version, i), n));
    i = end;
  }
}

template <class Exec, class T>
std::vector<StateField> WeightVersions<Exec, T>::fields(std::int64_t version, const std::string& prefix,
                                                        bool saved) const {
  std::vector<StateField> all;
  for (std::size_t i = 0; i < offset_.size(); ++i) {
    const TensorHolding& tensor = arena_.layout().tensors[i];
    if (!tensor.whole.trainable) continue;
    const bool vector_like = tensor.whole.is_vector();
    StateField field;
    field.path = prefix + "/" + tensor.whole.name;
    field.dtype = !vector_like && std::is_same_v<T, bf16> ? DType::bf16 : DType::f32;
    field.shape = {tensor.whole.rows};
    if (!vector_like) field.shape.push_back(tensor.whole.cols);
    field.row_begin = tensor.row_begin;
    field.row_end = tensor.row_begin + tensor.local.rows;
    if (tensor.local.cols != tensor.whole.cols) {
      field.col_begin = tensor.col_begin;
      field.col_end = tensor.col_begin + tensor.local.cols;
    }
    field.data = vector_like ? static_cast<void*>(vector(version, i)) : static_cast<void*>(matrix(version, i));
    field.on_device = !is_host<Exec>;
    field.saved = saved && tensor.counted;
    all.push_back(std::move(field));
  }
  return all;
}

#define SESTINA_WEIGHT_VERSIONS(Exec, T) template class WeightVersions<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_WEIGHT_VERSIONS)

namespace {

constexpr std::size_t drift_piece = 1 << 16;  // elements of one sum

std::size_t pieces_of(const TensorSpec& spec) {  // a frozen tensor does not move
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
DriftMeter<Exec, T>::DriftMeter(const Arena<Exec, T>& arena, bool experts_alone)
    : arena_(arena), experts_alone_(experts_alone) {
  std::size_t pieces = 0;
  for (const TensorSpec& spec : arena.specs()) pieces += pieces_of(spec);
  sums_ = HostValues<Exec>("sestina::drift", 2 * pieces);
}

template <class Exec, class T>
bool DriftMeter<Exec, T>::counts(std::size_t tensor) const {
  const TensorHolding& holding = arena_.layout().tensors[tensor];
  return holding.whole.trainable && holding.counted && !(experts_alone_ && holding.whole.expert < 0);
}

template <class Exec, class T>
WeightDrift DriftMeter<Exec, T>::from(const Exec& exec, const WeightVersions<Exec, T>& versions, std::int64_t version) {
  const std::size_t half = sums_.size() / 2;
  std::size_t used = 0;
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const TensorSpec& spec = arena_.specs()[i];
    if (!counts(i)) continue;
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

namespace {

// Return tensor i as it is computed with: a matrix, or a vector.
template <class Exec, class T>
Vector<const T, Exec> newest_matrix(const Arena<Exec, T>& arena, std::size_t i) {
  return Vector<const T, Exec>(arena.matrix(i), static_cast<std::size_t>(arena.specs()[i].elements()));
}
template <class Exec, class T>
Vector<const Acc<T>, Exec> newest_vector(const Arena<Exec, T>& arena, std::size_t i) {
  return Vector<const Acc<T>, Exec>(arena.vector(i), static_cast<std::size_t>(arena.specs()[i].elements()));
}

// Returns the rows of a tensor whose complete gradient this rank has.
template <class View>
View owned_part(const View& all, const TensorHolding& tensor) {
  return View(all.data() + static_cast<std::size_t>(tensor.owned_begin * tensor.local.cols), tensor.owned_elements());
}

}  // namespace

template <class Exec, class T>
DelayCorrection<Exec, T>::DelayCorrection(const ParallelOptions::Correction& set, int delay, const ModelConfig& config,
                                          LayerRange range, const Arena<Exec, T>& arena,
                                          WeightVersions<Exec, T>& versions)
    : set_(set), delay_(delay), arena_(arena), versions_(versions) {
  if (!estimates()) return;
  earlier_ = std::make_unique<WeightVersions<Exec, T>>(config, range, arena, 1);
  std::size_t elements = 0;
  for (const TensorSpec& spec : arena.specs()) {
    velocity_at_.push_back(elements);
    if (spec.trainable) elements += aligned_elements(static_cast<std::size_t>(spec.elements()));
  }
  velocity_ = decltype(velocity_)("sestina::velocity", elements);
}

template <class Exec, class T>
double DelayCorrection<Exec, T>::rate(std::int64_t t) const {
  const bool lowered = set_.kind == Kind::pipedream_lr || set_.kind == Kind::pipemare;
  if (!lowered || delay_ <= 1 || t <= set_.warmup) return 1;
  const double part = std::min(static_cast<double>(t) / static_cast<double>(set_.steps), 1.0);
  return std::pow(static_cast<double>(delay_), -(1 - part));
}

template <class Exec, class T>
void DelayCorrection<Exec, T>::begin(const Exec& exec, std::int64_t version) {
  if (predicts()) versions_.keep(exec, version);
  if (!estimates()) return;
  set_zero<Exec, Acc<T>>(exec, Vector<Acc<T>, Exec>(velocity_.data(), velocity_.size()));
  look_back_all(exec);
}

template <class Exec, class T>
void DelayCorrection<Exec, T>::before_update(const Exec& exec, std::int64_t version) {
  if (predicts()) versions_.keep(exec, version + 1);  // they take the place of their prediction
  if (estimates()) earlier_->keep(exec, 0);
}

template <class Exec, class T>
void DelayCorrection<Exec, T>::after_update(const Exec& exec, std::int64_t version) {
  const double decay = std::pow(set_.decay, 1.0 / delay_);
  for (std::size_t i = 0; follows_weights() && i < arena_.size(); ++i) {
    const TensorSpec& spec = arena_.layout().tensors[i].whole;
    if (!spec.trainable) continue;
    const bool vector = spec.is_vector(), restarts = updates_of_state(spec, version + 2) == 1;
    const int ahead = restarts ? 0 : delay_;  // nothing is known of the movement of a tensor that starts over
    if (predicts() && vector)
      move_on<Exec, Acc<T>>(exec, ahead, newest_vector<Exec, T>(arena_, i), versions_.vector_of(version + 1, i));
    else if (predicts())
      move_on<Exec, T>(exec, ahead, newest_matrix<Exec, T>(arena_, i), versions_.matrix_of(version + 1, i));
    else if (restarts)
      set_zero<Exec, Acc<T>>(exec, velocity(i));
    else if (vector)
      follow<Exec, Acc<T>>(exec, decay, newest_vector<Exec, T>(arena_, i), earlier_->vector_of(0, i), velocity(i));
    else
      follow<Exec, T>(exec, decay, newest_matrix<Exec, T>(arena_, i), earlier_->matrix_of(0, i), velocity(i));
  }
  if (estimates()) look_back_all(exec);
}

template <class Exec, class T>
void DelayCorrection<Exec, T>::restored(const Exec& exec) {
  if (estimates()) look_back_all(exec);
}

template <class Exec, class T>
void DelayCorrection<Exec, T>::look_back_all(const Exec& exec) {
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    if (!arena_.specs()[i].trainable) continue;
    if (arena_.specs()[i].is_vector())
      look_back<Exec, Acc<T>>(exec, delay_, newest_vector<Exec, T>(arena_, i), velocity(i), earlier_->vector_of(0, i));
    else
      look_back<Exec, T>(exec, delay_, newest_matrix<Exec, T>(arena_, i), velocity(i), earlier_->matrix_of(0, i));
  }
}

template <class Exec, class T>
const Weights<Exec, T>* DelayCorrection<Exec, T>::estimate(std::int64_t minibatch) const {
  return estimates() && minibatch >= set_.warmup ? &earlier_->of(0) : nullptr;
}

template <class Exec, class T>
void DelayCorrection<Exec, T>::correct_gradients(const Exec& exec, std::int64_t version) const {
  if (!compensates()) return;
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    const TensorHolding& tensor = arena_.layout().tensors[i];
    if (!tensor.local.trainable || tensor.owned_rows() == 0) continue;
    if (tensor.local.is_vector())
      compensate<Exec, Acc<T>>(exec, set_.lambda, owned_part(newest_vector<Exec, T>(arena_, i), tensor),
                               owned_part(versions_.vector_of(version, i), tensor), arena_.owned_gradient(i));
    else
      compensate<Exec, T>(exec, set_.lambda, owned_part(newest_matrix<Exec, T>(arena_, i), tensor),
                          owned_part(versions_.matrix_of(version, i), tensor), arena_.owned_gradient(i));
  }
}

template <class Exec, class T>
std::vector<StateField> DelayCorrection<Exec, T>::fields(const std::string& prefix, bool saved) const {
  std::vector<StateField> all;
  if (!estimates()) return all;
  all = earlier_->fields(0, prefix + "/velocity", saved);
  std::size_t field = 0;
  for (std::size_t i = 0; i < arena_.size(); ++i) {
    if (!arena_.specs()[i].trainable) continue;
    all[field].dtype = DType::f32;
    all[field++].data = velocity(i).data();
  }
  return all;
}

#define SESTINA_CORRECTION(Exec, T) template class DelayCorrection<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_CORRECTION)

}  // namespace sestina
