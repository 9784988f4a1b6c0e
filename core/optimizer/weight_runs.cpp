#include "core/optimizer/weight_runs.hpp"

#include "kernels/base/error.hpp"

namespace sestina {

std::vector<WeightRun> weight_runs(const std::vector<StateField>& weights) {
  std::vector<WeightRun> runs;
  std::size_t total = 0;
  for (const StateField& field : weights) {
    SESTINA_REQUIRE(field.dtype == DType::f32 && field.pager == nullptr, "{}: not a weight in fp32", field.path);
    auto* const data = static_cast<float*>(const_cast<void*>(field.data));  // a field only says where it is
    const std::size_t count = field.bytes() / sizeof(float);
    if (!runs.empty() && runs.back().weights + runs.back().count == data)
      runs.back().count += count;
    else
      runs.push_back({data, total, count});
    total += count;
  }
  return runs;
}

std::size_t weight_count(const std::vector<WeightRun>& runs) {
  return runs.empty() ? 0 : runs.back().at + runs.back().count;
}

std::vector<StateField> fields_of_weights(std::vector<StateField> weights, const float* first,
                                          const std::string& name) {
  for (StateField& field : weights) {
    field.path = "/optimizer/" + field.path.substr(std::string_view("/model/").size()) + "/" + name;
    field.data = first;
    first += field.bytes() / sizeof(float);
  }
  return weights;
}

}  // namespace sestina
