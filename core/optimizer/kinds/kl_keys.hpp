// Keys and fields that KL-Shampoo and KL-SOAP share. No Kokkos.
#pragma once
#include "core/deck/kinds.hpp"

namespace sestina {

MatrixKind kl_kind(std::string name);

}  // namespace sestina
