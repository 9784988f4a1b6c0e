#include "core/optimizer/kinds/muon_rule.hpp"

namespace sestina {

MatrixKind adamuon_kind() {
  MatrixKind kind;
  kind.name = "adamuon";
  kind.keys = muon_keys_with_second_moment();
  kind.state = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) {
    return std::vector<FieldSize>{{"momentum", DType::f32, rows, cols}, {"second_moment", DType::f32, rows, cols}};
  };
  return kind;
}

}  // namespace sestina
