// Host products in a build without oneDNN: CBLAS in float and double; bf16 is widened to float while it is packed.
#include "kernels/blas/host/gemm_host.hpp"
#include "kernels/blas/host/packed_product.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace sestina {

Bf16Way bf16_way() { return Bf16Way::widened; }

namespace host {

bool is_packed(GemmTypes types, bool) { return reads_bf16(types); }

const char* library_instruction_set() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return "avx512f";
  if (__builtin_cpu_supports("avx2")) return "avx2";
  return "x86-64";
#else
  return "other";
#endif
}

struct Library::State {
  PackedProducts packed{VectorLevel::avx512};
};

Library::Library() : state_(std::make_unique<State>()) {}
Library::~Library() = default;
Library::Library(Library&&) noexcept = default;

void Library::run(const Product& p, const Operands& x) {
  switch (p.types) {
    case GemmTypes::f32:
      return blas_gemm(p, x.alpha, static_cast<const float*>(x.a), static_cast<const float*>(x.b),
                       static_cast<float*>(x.c));
    case GemmTypes::f64:
      return blas_gemm(p, x.alpha, static_cast<const double*>(x.a), static_cast<const double*>(x.b),
                       static_cast<double*>(x.c));
    case GemmTypes::bf16:
    case GemmTypes::bf16_to_f32:
      return state_->packed.run(p, x);
  }
}

bool Library::run_packed(const Product& p, const Operands& x) {
  if (!reads_bf16(p.types)) return false;
  state_->packed.run(p, x);
  return true;
}

}  // namespace host
}  // namespace sestina
