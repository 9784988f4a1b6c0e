#include "core/optimizer/kinds/muon_rule.hpp"

namespace sestina {

MatrixKind muon_kind() {
  MatrixKind kind;
  kind.name = "muon";
  kind.keys = muon_keys();
  kind.state = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) {
    return std::vector<FieldSize>{{"momentum", DType::f32, rows, cols}};
  };
  return kind;
}

}  // namespace sestina
