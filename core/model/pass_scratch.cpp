#include "core/model/pass_scratch.hpp"

#include <algorithm>

#include "core/model/attention_layer.hpp"
#include "kernels/blas/reduce.hpp"
#include "kernels/model/attention.hpp"
#include "kernels/model/loss.hpp"
#include "kernels/model/norm.hpp"

namespace sestina {
namespace {

template <class T>
std::size_t kernel_bytes(const ModelConfig& c, int micro_batch, int sequence, int threads) {
  const std::size_t n = static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(sequence);
  const auto widest = static_cast<std::size_t>(
      std::max({c.hidden_size, c.query_width() + 2 * c.key_value_width(), c.gated() ? 0 : c.intermediate_size}));
  return std::max({attention_workspace_bytes<T>(threads, attention_shape(c, micro_batch, sequence)),
                   norm_workspace_bytes<Host, T>(n, widest),
                   embed_workspace_bytes<Host>(n, static_cast<std::size_t>(c.vocab_size)),
                   reduce_workspace_bytes<Host>(n)});
}

}  // namespace

std::size_t workspace_bytes(const ModelPart& part, int micro_batch, int sequence, StorageWidth w, int threads) {
  const ModelConfig& c = part.config;
  const std::size_t kernels = w.compute == sizeof(bf16)    ? kernel_bytes<bf16>(c, micro_batch, sequence, threads)
                              : w.compute == sizeof(float) ? kernel_bytes<float>(c, micro_batch, sequence, threads)
                                                           : kernel_bytes<double>(c, micro_batch, sequence, threads);
  return scratch_bytes(part, micro_batch, sequence, w) + kernels;
}

std::size_t rope_table_bytes(const ModelConfig& c, int sequence, StorageWidth w) {
  if (c.position == ModelConfig::Position::learned) return 0;
  return static_cast<std::size_t>(sequence) * static_cast<std::size_t>(c.head_dim / 2) * 2 * w.accumulate;
}

}  // namespace sestina
