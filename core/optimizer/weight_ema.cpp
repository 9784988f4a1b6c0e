#include "core/optimizer/weight_ema.hpp"

#include <utility>

#include "kernels/base/error.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/optimizer/element_rules.hpp"

namespace sestina {

template <class Exec>
WeightEma<Exec>::WeightEma(const Exec& exec, std::vector<StateField> weights, double tau)
    : weights_(std::move(weights)), tau_(tau) {
  std::size_t total = 0;
  for (const StateField& field : weights_) {
    SESTINA_REQUIRE(field.dtype == DType::f32, "{}: a mean needs weights in fp32", field.path);
    const auto* const data = static_cast<const float*>(field.data);
    const std::size_t count = field.bytes() / sizeof(float);
    if (!runs_.empty() && runs_.back().weights + runs_.back().count == data)
      runs_.back().count += count;
    else
      runs_.push_back({data, total, count});
    total += count;
  }
  means_ = decltype(means_)(Kokkos::view_alloc(exec, "sestina::ema"), total);
}

template <class Exec>
void WeightEma<Exec>::start(const Exec& exec) {
  for (const Run& run : runs_) convert<Exec, float, float>(exec, weights_of(run), means_of(run));
}

template <class Exec>
void WeightEma<Exec>::follow(const Exec& exec, std::int64_t t) {
  if (t == 1) return start(exec);
  for (const Run& run : runs_) follow_weights<Exec, float>(exec, weights_of(run), tau_, means_of(run));
}

template <class Exec>
std::vector<StateField> WeightEma<Exec>::fields() const {
  std::vector<StateField> fields = weights_;
  std::size_t at = 0;
  for (StateField& field : fields) {
    field.path = "/optimizer/" + field.path.substr(std::string_view("/model/").size()) + "/ema";
    field.data = means_.data() + at;
    at += field.bytes() / sizeof(float);
  }
  return fields;
}

#define SESTINA_WEIGHT_EMA(Exec) template class WeightEma<Exec>;
SESTINA_INSTANTIATE_SPACES(SESTINA_WEIGHT_EMA)

}  // namespace sestina
