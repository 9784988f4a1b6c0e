#include "kernels/blas/instruction_set.hpp"

#include "kernels/blas/host/gemm_host.hpp"

namespace sestina {

std::string instruction_set() {
  std::string set = host::library_instruction_set();
  const Bf16Way way = bf16_way();
  if (!has_bf16_products(way)) set.append(", ").append(to_text(way));
  return set;
}

}  // namespace sestina
