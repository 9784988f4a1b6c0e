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
      heads_(static_cast<int>(config.num_attention_heads)),
      groups_(static_cast<int>(config.num_key_value_heads)),
      scores_("sestina::largest_scores", static_cast<std::size_t>(config.num_hidden_layers),
              static_cast<std::size_t>(heads_)),
      host_(Kokkos::create_mirror_view(scores_)) {
  for (const auto& tensor : tensors) {
    if (tensor.spec.name.find(".q_proj.") != std::string::npos) add(tensor, heads_, options.qk_clip_alpha);
    if (tensor.spec.name.find(".k_proj.") != std::string::npos) add(tensor, groups_, 1 - options.qk_clip_alpha);
  }
  start_step(exec);
}

template <class Exec, class T>
void QkClip<Exec, T>::add(const OwnedTensor<Exec, T>& tensor, int heads, double exponent) {
  const std::size_t n = tensor.master.size() / static_cast<std::size_t>(groups_);  // heads of a group lie together
  SESTINA_REQUIRE(heads % groups_ == 0 && n * static_cast<std::size_t>(groups_) == tensor.master.size(),
                  "{}: {} heads in {} groups", tensor.spec.name, heads, groups_);
  for (int group = 0; group < groups_; ++group) {
    const std::size_t at = static_cast<std::size_t>(group) * n;
    Vector<T, Exec> weight;
    if (tensor.weight.size() > 0) weight = {tensor.weight.data() + at, n};
    scaled_.push_back({tensor.spec.layer, group, exponent, {tensor.master.data() + at, n}, weight});
  }
}

template <class Exec, class T>
Vector<Acc<T>, Exec> QkClip<Exec, T>::scores(int layer) const {
  return {scores_.data() + static_cast<std::size_t>(layer) * scores_.extent(1), scores_.extent(1)};
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
double QkClip<Exec, T>::apply(const Exec& exec) {
  if constexpr (!is_host<Exec>) Kokkos::deep_copy(exec, host_, scores_);
  exec.fence("qk_clip");
  const int group_heads = heads_ / groups_;
  double largest = -INFINITY;
  for (std::size_t i = 0; i < host_.size(); ++i) largest = std::max(largest, static_cast<double>(host_.data()[i]));
  if (!(largest > threshold_)) return largest;
  for (const Head& head : scaled_) {
    const Acc<T>* first =
        &host_(static_cast<std::size_t>(head.layer), static_cast<std::size_t>(head.group * group_heads));
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
