#include "core/optimizer/qk_clip.hpp"

#include <algorithm>
#include <cmath>

namespace sestina {
namespace {

template <class Exec, class T>
void scale_rows(const Exec& exec, Acc<T> factor, Vector<Acc<T>, Exec> master, Vector<T, Exec> weight) {
  const bool rounded = weight.size() > 0;
  Kokkos::parallel_for(
      "qk_clip", Kokkos::RangePolicy<Exec>(exec, 0, master.size()), KOKKOS_LAMBDA(const std::size_t i) {
        master(i) *= factor;
        if (rounded) weight(i) = static_cast<T>(master(i));
      });
}

}  // namespace

template <class Exec, class T>
QkClip<Exec, T>::QkClip(const Exec& exec, const ModelConfig& config, const OptimizerOptions& options,
                        const std::vector<OwnedTensor<Exec, T>>& tensors)
    : threshold_(options.qk_clip),
      alpha_(options.qk_clip_alpha),
      heads_(static_cast<int>(config.num_attention_heads)),
      groups_(static_cast<int>(config.num_key_value_heads)),
      scores_("sestina::largest_scores",
              static_cast<std::size_t>(config.num_hidden_layers * config.num_attention_heads)),
      largest_(scores_.size()) {
  if constexpr (is_host<Exec>)
    host_ = scores_;
  else
    host_ = decltype(host_)("sestina::largest_scores_host", scores_.size());
  for (const auto& tensor : tensors) add_rows(tensor, rows_);
  start_step(exec, 0);
}

template <class Exec, class T>
void QkClip<Exec, T>::keep(int minibatches) {
  places_ = minibatches;
  scores_ = decltype(scores_)("sestina::largest_scores", static_cast<std::size_t>(minibatches) * largest_.size());
  Kokkos::deep_copy(scores_, -Kokkos::Experimental::infinity_v<Acc<T>>);
}

template <class Exec, class T>
Vector<Acc<T>, Exec> QkClip<Exec, T>::place_of(std::int64_t minibatch) const {
  const std::size_t n = largest_.size();
  return Vector<Acc<T>, Exec>(scores_.data() + static_cast<std::size_t>(minibatch % places_) * n, n);
}

template <class Exec, class T>
void QkClip<Exec, T>::add_rows(const OwnedTensor<Exec, T>& tensor, std::vector<ClippedRows<Exec, T>>& list) const {
  if (tensor.spec.projection == Projection::none) return;
  const bool q = tensor.spec.projection == Projection::query;
  const std::int64_t rows = tensor.spec.rows / groups_;  // heads of a group are adjacent
  SESTINA_REQUIRE(tensor.spec.rows % groups_ == 0, "{}: {} rows in {} groups", tensor.spec.name, tensor.spec.rows,
                  groups_);
  for (int group = 0; group < groups_; ++group) {
    const std::int64_t begin = std::max(tensor.row_begin, group * rows) - tensor.row_begin,
                       end = std::min(tensor.row_begin + tensor.rows(), (group + 1) * rows) - tensor.row_begin;
    if (begin >= end) continue;
    const auto at = static_cast<std::size_t>(begin * tensor.cols()),
               n = static_cast<std::size_t>((end - begin) * tensor.cols());
    Vector<T, Exec> weight;
    if (tensor.weight.size() > 0) weight = Vector<T, Exec>(tensor.weight.data() + at, n);
    list.push_back({tensor.spec.layer, group, q ? alpha_ : 1 - alpha_,
                    Vector<Acc<T>, Exec>(tensor.master.data() + at, n), weight});
  }
}

template <class Exec, class T>
Vector<Acc<T>, Exec> QkClip<Exec, T>::scores(std::int64_t minibatch, int layer, int first, int count) const {
  return Vector<Acc<T>, Exec>(place_of(minibatch).data() + static_cast<std::size_t>(layer * heads_ + first),
                              static_cast<std::size_t>(count));
}

template <class Exec, class T>
void QkClip<Exec, T>::start_step(const Exec& exec, std::int64_t minibatch) {
  const Vector<Acc<T>, Exec> scores = place_of(minibatch);
  Kokkos::parallel_for(
      "qk_reset", Kokkos::RangePolicy<Exec>(exec, 0, scores.size()),
      KOKKOS_LAMBDA(const std::size_t i) { scores(i) = -Kokkos::Experimental::infinity_v<Acc<T>>; });
}

template <class Exec, class T>
void QkClip<Exec, T>::send(const Exec& exec, std::int64_t minibatch) {
  const Vector<Acc<T>, Exec> scores = place_of(minibatch);
  if constexpr (is_host<Exec>)
    host_ = decltype(host_)(scores_,
                            std::pair(scores.data() - scores_.data(),
                                      scores.data() - scores_.data() + static_cast<std::ptrdiff_t>(scores.size())));
  else
    Kokkos::deep_copy(exec, host_, scores);
}

template <class Exec, class T>
std::vector<double>& QkClip<Exec, T>::take() {
  for (std::size_t i = 0; i < largest_.size(); ++i) largest_[i] = static_cast<double>(host_(i));
  return largest_;
}

template <class Exec, class T>
double QkClip<Exec, T>::largest() const {
  return *std::max_element(largest_.begin(), largest_.end());
}

template <class Exec, class T>
void QkClip<Exec, T>::scale(const Exec& exec, const std::vector<ClippedRows<Exec, T>>& rows) const {
  if (!(largest() > threshold_)) return;
  const int group_heads = heads_ / groups_;
  for (const ClippedRows<Exec, T>& part : rows) {
    const double* first = &largest_[static_cast<std::size_t>(part.layer * heads_ + part.group * group_heads)];
    const double top = *std::max_element(first, first + group_heads);
    if (top > threshold_)
      scale_rows<Exec, T>(exec, static_cast<Acc<T>>(std::pow(threshold_ / top, part.exponent)), part.master,
                          part.weight);
  }
}

template <class Exec, class T>
double QkClip<Exec, T>::apply(const Exec& exec) const {
  scale(exec, rows_);
  return largest();
}

#define SESTINA_QK_CLIP(Exec, T) template class QkClip<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_QK_CLIP)

}  // namespace sestina
