#include "core/model/pass_scratch.hpp"

#include <algorithm>

#include "core/model/block.hpp"
#include "kernels/blas/sums.hpp"
#include "kernels/model/attention.hpp"
#include "kernels/model/loss.hpp"
#include "kernels/model/norm.hpp"
#include "kernels/model/token_sort.hpp"

namespace sestina {
namespace {

// Declares the kernels that take something for themselves.
template <class T>
void declare_kernels(Workspace<Host>& workspace, const ModelPart& part, int micro_batch, int sequence, int threads) {
  const ModelConfig& c = part.config;
  const std::size_t n = static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(sequence);
  const auto widest = static_cast<std::size_t>(
      std::max({c.hidden_size, c.query_width() + 2 * c.key_value_width(), c.gated() ? 0 : c.intermediate_size}));
  const std::int64_t qkv = c.query_width() + 2 * c.key_value_width();
  declare_attention<T, Host>(workspace, threads, attention_shape(c, micro_batch, sequence),
                             {.qk = static_cast<int>(c.query_norms() ? qkv - c.key_value_width() : row_stride(qkv)),
                              .qkv = static_cast<int>(row_stride(qkv))});
  declare<NormScratch<Host, T>>(workspace, n, widest);
  if (c.head_bias)
    declare<RowSumScratch<Host, Acc<T>>>(workspace,
                                         static_cast<std::size_t>(logit_rows(part, micro_batch * sequence, sizeof(T))),
                                         static_cast<std::size_t>(c.vocab_size));
  declare<SumScratch<Host>>(workspace, n);
  if (c.has_experts()) declare<TokenSortScratch<Host>>(workspace, static_cast<std::int64_t>(n), c.num_experts);
}

}  // namespace

std::size_t workspace_bytes(const ModelPart& part, int micro_batch, int sequence, StorageWidth w, int threads) {
  const auto declare = w.compute == sizeof(bf16)    ? declare_kernels<bf16>
                       : w.compute == sizeof(float) ? declare_kernels<float>
                                                    : declare_kernels<double>;
  return scratch_bytes(part, micro_batch, sequence, w) +
         bytes_taken<Host>([&](Workspace<Host>& counter) { declare(counter, part, micro_batch, sequence, threads); });
}

std::size_t rope_table_bytes(const ModelConfig& c, int sequence, StorageWidth w) {
  if (c.position == ModelConfig::Position::learned) return 0;
  return static_cast<std::size_t>(sequence) * static_cast<std::size_t>(c.head_dim / 2) * 2 * w.accumulate;
}

}  // namespace sestina
