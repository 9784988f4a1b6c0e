#include "core/delay_correction.hpp"

#include <cmath>

#include "kernels/optimizer/delay_correction.hpp"

namespace sestina {
namespace {

// Tensor i as it is computed with: as a matrix, or as a vector.
template <class Exec, class T>
Vector<const T, Exec> newest_matrix(const Arena<Exec, T>& arena, std::size_t i) {
  return Vector<const T, Exec>(arena.matrix(i), static_cast<std::size_t>(arena.specs()[i].elements()));
}
template <class Exec, class T>
Vector<const Acc<T>, Exec> newest_vector(const Arena<Exec, T>& arena, std::size_t i) {
  return Vector<const Acc<T>, Exec>(arena.vector(i), static_cast<std::size_t>(arena.specs()[i].elements()));
}

// Rows of a tensor whose complete gradient this rank has.
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
  if (predicts()) versions_.keep(exec, version + 1);  // in the place of its prediction
  if (estimates()) earlier_->keep(exec, 0);
}

template <class Exec, class T>
void DelayCorrection<Exec, T>::after_update(const Exec& exec, std::int64_t version) {
  const double decay = std::pow(set_.decay, 1.0 / delay_);
  for (std::size_t i = 0; follows_weights() && i < arena_.size(); ++i) {
    const TensorSpec& spec = arena_.layout().tensors[i].whole;
    if (!spec.trainable) continue;
    const bool vector = spec.is_vector(), restarts = updates_of_state(spec, version + 2) == 1;
    const int ahead = restarts ? 0 : delay_;  // no movement is known of what starts over
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
