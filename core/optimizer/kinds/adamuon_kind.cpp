#include "core/optimizer/kinds/muon_rule.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

MatrixKind adamuon_kind() {
  MatrixKind kind;
  kind.name = "adamuon";
  kind.keys = muon_keys_with_second_moment();
  kind.state = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) {
    return std::vector<FieldSize>{{"momentum", DType::f32, rows, cols}, {"second_moment", DType::f32, rows, cols}};
  };
  kind.stated_flops = stated_products;
  kind.work = newton_schulz_work;
  return kind;
}

}  // namespace sestina
