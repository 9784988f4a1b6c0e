#include "core/optimizer/kinds/kl_keys.hpp"
#include "core/optimizer/kinds/work.hpp"

namespace sestina {

MatrixKind kl_soap_kind() {
  MatrixKind kind = kl_kind("kl-soap");
  kind.keys.push_back(number_key("beta2", 0.98, {.min = 0, .max = 1, .open_max = true}));
  kind.stated_flops = stated_rotation;
  kind.work = [](const MatrixOptions&, std::int64_t rows, std::int64_t cols) { return kl_work(rows, cols, 11); };
  return kind;
}

}  // namespace sestina
