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
      scores_("sestina::largest_scores", static_cast<std::size_t>(config.num_hidden_layers),
              static_cast<std::size_t>(heads_)),
      largest_(scores_.size()) {
  if constexpr (is_host<Exec>)
    host_ = scores_;
  else
    host_ = decltype(host_)("sestina::largest_scores_host", scores_.extent(0), scores_.extent(1));
  for (const auto& tensor : tensors) add(tensor);
  start_step(exec);
}

template <class Exec, class T>
void QkClip<Exec, T>::add(const OwnedTensor<Exec, T>& tensor) {
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
    scaled_.push_back({tensor.spec.layer, group, q ? alpha_ : 1 - alpha_,
                       Vector<Acc<T>, Exec>(tensor.master.data() + at, n), weight});
  }
}

template <class Exec, class T>
Vector<Acc<T>, Exec> QkClip<Exec, T>::scores(int layer, int first, int count) const {
  return Vector<Acc<T>, Exec>(scores_.data() + static_cast<std::size_t>(layer) * scores_.extent(1) + first,
                              static_cast<std::size_t>(count));
}

template <class Exec, class T>
void QkClip<Exec, T>::start_step(const Exec& exec) {
  const auto scores = scores_;
  const std::size_t heads = scores.extent(1);
  Kokkos::parallel_for(
      "qk_reset", Kokkos::RangePolicy<Exec>(exec, 0, scores.size()),
      KOKKOS_LAMBDA(const std::size_t i) { scores(i / heads, i % heads) = -Kokkos::Experimental::infinity_v<Acc<T>>; });
}

template <class Exec, class T>
void QkClip<Exec, T>::send(const Exec& exec) {
  if constexpr (!is_host<Exec>) Kokkos::deep_copy(exec, host_, scores_);
}

template <class Exec, class T>
std::vector<double>& QkClip<Exec, T>::take() {
  for (std::size_t i = 0; i < largest_.size(); ++i) largest_[i] = static_cast<double>(host_.data()[i]);
  return largest_;
}

template <class Exec, class T>
double QkClip<Exec, T>::apply(const Exec& exec) {
  const int group_heads = heads_ / groups_;
  const double largest = *std::max_element(largest_.begin(), largest_.end());
  if (!(largest > threshold_)) return largest;
  for (const Head& head : scaled_) {
    const double* first = &largest_[static_cast<std::size_t>(head.layer * heads_ + head.group * group_heads)];
    const double top = *std::max_element(first, first + group_heads);
    if (top > threshold_)
      scale_rows<Exec, T>(exec, static_cast<Acc<T>>(std::pow(threshold_ / top, head.exponent)), head.master,
                          head.weight);
  }
  return largest;
}

#define SESTINA_QK_CLIP(Exec, T) template class QkClip<Exec, T>;
SESTINA_INSTANTIATE_COMPUTE(SESTINA_QK_CLIP)

}  // namespace sestina
