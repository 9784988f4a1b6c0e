// APOLLO (arXiv 2412.05270): the gradient, its channels scaled as Adam on a random projection of it would scale them.
// Mini: scale_type = "tensor", rank = 1, scale = 128.
#include "core/optimizer/kinds/sides.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

MatrixKind apollo_kind() {
  MatrixKind kind = low_rank_kind("apollo", 1, {"random"});
  const std::vector<KindKey> own = {
      flag_key("scale_front", false),   word_key("scale_type", {"channel", "tensor"}),
      number_key("growth_limit", 1.01), eps_key("norm_eps", 1e-8),
      integer_key("seed", 0),
  };
  kind.weight_group = 128;  // as Q-APOLLO
  kind.keys.insert(kind.keys.end(), own.begin(), own.end());
  kind.state = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {
    std::vector<FieldSize> fields = low_rank_fields(options, rows, cols);
    fields.push_back({"update_norm", DType::f32, 1, 1});
    return fields;
  };
  kind.work = [](const MatrixOptions& options, std::int64_t rows, std::int64_t cols) {  // it projects, but not back
    return UpdateWork{.update = projection_work(low_rank_of(options, rows, cols), rows, cols) / 2};
  };
  return kind;
}

}  // namespace sestina
