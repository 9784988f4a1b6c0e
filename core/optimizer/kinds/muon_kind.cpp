#include "core/optimizer/kinds/muon_rule.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

MatrixKind muon_kind() {
  MatrixKind kind;
  kind.name = "muon";
  kind.keys = muon_keys();
  kind.state = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) {
    return std::vector<FieldSize>{{"momentum", DType::f32, rows, cols}};
  };
  kind.stated_flops = stated_products;
  kind.work = newton_schulz_work;
  kind.shardable = true;
  kind.keeps_skew = [](const MatrixOptions&) { return true; };
  return kind;
}

}  // namespace sestina
