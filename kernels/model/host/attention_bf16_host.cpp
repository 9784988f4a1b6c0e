#include "kernels/model/host/attention_bf16.hpp"

namespace sestina::host {

const AttentionBf16* attention_bf16_passes(Bf16Way way) {
#if defined(__x86_64__)
  if (way == Bf16Way::tiles) return attention_bf16_tiles();
  if (way == Bf16Way::dot_products) return attention_bf16_dot_products();
#endif
  return nullptr;
}

}  // namespace sestina::host
