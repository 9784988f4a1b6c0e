// Order of the parts of a weight in form lora. No Kokkos.
#pragma once
#include "core/layout/weight_form.hpp"

namespace sestina {

enum LoraPart { lora_base, lora_down, lora_up };

}  // namespace sestina
