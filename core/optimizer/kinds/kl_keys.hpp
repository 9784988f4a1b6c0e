// Keys, fields and work that KL-Shampoo and KL-SOAP share. No Kokkos.
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

MatrixKind kl_kind(std::string name);
// Executed: `per_product` a^2 b for each side of length a.
UpdateWork kl_work(std::int64_t rows, std::int64_t cols, double per_product);

}  // namespace sestina
