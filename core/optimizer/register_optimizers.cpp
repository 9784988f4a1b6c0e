#include "core/optimizer/register_optimizers.hpp"

#include "core/optimizer/methods/adam.hpp"
#include "core/optimizer/methods/apollo.hpp"
#include "core/optimizer/methods/basis_rotation.hpp"
#include "core/optimizer/methods/galore.hpp"
#include "core/optimizer/methods/kl/kl_shampoo.hpp"
#include "core/optimizer/methods/kl/kl_soap.hpp"
#include "core/optimizer/methods/muon.hpp"
#include "core/optimizer/methods/shampoo/shampoo.hpp"
#include "core/optimizer/methods/soap.hpp"
#include "core/optimizer/methods/soap_muon/soap_muon.hpp"

namespace sestina {

void register_optimizers() {
  static const bool once = [] {
    register_muon();
    register_normuon();
    register_adamuon();
    register_shampoo();
    register_soap();
    register_soap_muon();
    register_kl_shampoo();
    register_kl_soap();
    register_basis_rotation();
    register_galore();
    register_apollo();
    register_adam();
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace sestina
