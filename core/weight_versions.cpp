#include "core/weight_versions.hpp"

namespace sestina {
template <class Exec, class T>
WeightVersions<Exec, T>::WeightVersions(const ModelConfig& config, LayerRange range, const Arena<Exec, T>& arena,
                                        int depth)
    : arena_(arena) {
  if (depth == 0) return;
  for (const TensorSpec& spec : arena.specs()) {  // tensors that follow one another stay side by side
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

// Runs of tensors that lie side by side both here and there go in one copy.
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

}  // namespace sestina
