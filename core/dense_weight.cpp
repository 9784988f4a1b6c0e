#include "core/dense_weight.hpp"

#include <array>

#include "core/model/linear_form.hpp"

namespace sestina {
namespace {

template <class T>
void merge(const ModelConfig& model, const TensorSpec& spec, const std::vector<TensorSpec>& parts,
           std::vector<std::vector<std::byte>>& values, float* out) {
  FormedWeight weight{spec.name, spec.rows, spec.cols, {}, spec.cut};
  std::array<std::vector<T>, most_parts> rounded;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorSpec& part = parts[i];
    if (values[i].empty()) continue;
    weight.part.at(i) = values[i].data();
    if (!part.has_master() || part.is_vector()) continue;
    const auto* masters = reinterpret_cast<const float*>(values[i].data());  // the model computes with rounded ones
    for (std::int64_t e = 0; e < part.elements(); ++e) rounded.at(i).push_back(T(masters[e]));
    weight.part.at(i) = rounded.at(i).data();
  }
  const auto rows = static_cast<std::size_t>(spec.rows), cols = static_cast<std::size_t>(spec.cols);
  const Host exec;
  Gemm<Host> gemm(exec);
  Workspace<Host> workspace(
      find_weight_form(model.linear)->scratch(model.linear, {0, rows, cols, sizeof(T), sizeof(float)}).merge);
  GroupOps<Host> alone;
  Context<Host> context{exec, model_part(model, 1, 0), 1, 1, gemm, workspace, alone, {}, {}};
  linear_form<Host, T>(model.linear).effective(context, weight, Matrix<Acc<T>, Host>(out, rows, cols));
  exec.fence("dense");
}

}  // namespace

void make_dense(const ModelConfig& model, const TensorSpec& spec, const std::vector<TensorSpec>& parts,
                std::vector<std::vector<std::byte>> values, bool bf16, float* out) {
  if (bf16)
    merge<sestina::bf16>(model, spec, parts, values, out);
  else
    merge<float>(model, spec, parts, values, out);
}

}  // namespace sestina
