#include "core/optimizer/kinds/kl_keys.hpp"

namespace sestina {

MatrixKind kl_soap_kind() {
  MatrixKind kind = kl_kind("kl-soap");
  kind.keys.push_back(number_key("beta2", 0.98, {.min = 0, .max = 1, .open_max = true}));
  return kind;
}

}  // namespace sestina
