#include "core/model/activations.hpp"

namespace sestina {
namespace {

// Hands out the storage of a slot from front to back.
template <class Exec>
class Cutter {
 public:
  Cutter(std::byte* begin, std::size_t bytes) : begin_(begin), bytes_(bytes) {}
  template <class T>
  Vector<T, Exec> vector(std::size_t n) {
    if (n == 0) return {};
    auto* data = reinterpret_cast<T*>(begin_ + used_);
    used_ += (n * sizeof(T) + slot_alignment - 1) / slot_alignment * slot_alignment;
    SESTINA_REQUIRE(used_ <= bytes_, "{} of {} bytes of the slot are cut", used_, bytes_);
    return Vector<T, Exec>(data, n);
  }
  template <class T>
  Matrix<T, Exec> matrix(std::size_t elements, std::size_t rows) {
    if (elements == 0) return {};
    return Matrix<T, Exec>(vector<T>(elements).data(), rows, elements / rows);
  }
  // Rows are row_stride(columns) apart.
  template <class T>
  Matrix<T, Exec> apart(std::size_t elements, std::size_t rows, std::int64_t columns) {
    if (elements == 0) return {};
    return Kokkos::subview(matrix<T>(elements, rows), Kokkos::ALL, std::pair<std::int64_t, std::int64_t>(0, columns));
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* begin_;
  std::size_t bytes_, used_ = 0;
};

template <class Exec, class T>
void cut_experts(Cutter<Exec>& cut, const LayerSizes& s, std::size_t n, LayerActivations<Exec, T>& layer) {
  using A = Acc<T>;
  layer.expert_up = cut.template matrix<T>(s.expert_up, s.expert_rows);
  layer.chosen = cut.template matrix<std::int32_t>(s.choices, n);
  layer.place = cut.template matrix<std::int32_t>(s.choices, n);
  layer.token = cut.template vector<std::int32_t>(s.choices);
  layer.counts = cut.template vector<std::int64_t>(s.counts);
  layer.router = cut.template matrix<A>(s.router, n);
  layer.choice_weights = cut.template matrix<A>(s.choice_weights, n);
  layer.log_sums = cut.template vector<A>(s.log_sums);
  layer.counts_arrived = decltype(layer.counts_arrived)("sestina::counts_arrived", s.counts);
  layer.rows = std::make_shared<ExpertRows>();
  layer.rows->sent.resize(s.counts);
  layer.rows->received.resize(s.counts);
}

// Cuts all activations of a layer except its input.
template <class Exec, class T>
LayerActivations<Exec, T> cut_layer(Cutter<Exec>& cut, const ModelConfig& c, const LayerSizes& s, std::size_t n,
                                    std::size_t own) {
  using A = Acc<T>;
  LayerActivations<Exec, T> layer;
  layer.h = cut.template matrix<T>(s.h, own);
  layer.qkv = cut.template apart<T>(s.qkv, n, c.query_width() + 2 * c.key_value_width());
  layer.qk = cut.template matrix<T>(s.qk, n);
  layer.attended = cut.template matrix<T>(s.attended, n);
  layer.projected = cut.template matrix<T>(s.projected, own);
  layer.x2 = cut.template matrix<T>(s.x2, own);
  layer.h2 = cut.template matrix<T>(s.h2, own);
  layer.up = cut.template apart<T>(s.up, n, up_width(c));
  layer.down = cut.template matrix<T>(s.down, own);
  layer.kept_qkv = cut.template matrix<T>(s.kept_qkv, n);
  layer.kept_o = cut.template matrix<T>(s.kept_o, n);
  layer.kept_up = cut.template matrix<T>(s.kept_up, n);
  layer.kept_down = cut.template matrix<T>(s.kept_down, n);
  layer.lse = cut.template vector<A>(s.lse);
  layer.attention_norm = {cut.template vector<A>(s.inverse), cut.template vector<A>(s.mean)};
  layer.mlp_norm = {cut.template vector<A>(s.inverse), cut.template vector<A>(s.mean)};
  layer.inverse_q = cut.template vector<A>(s.inverse_q);
  layer.inverse_k = cut.template vector<A>(s.inverse_k);
  if (s.choices > 0) cut_experts(cut, s, n, layer);
  return layer;
}

}  // namespace

template <class Exec, class T>
Activations<Exec, T>::Activations(const ModelPart& part, LayerRange range, int micro_batch, int sequence,
                                  bool recompute) {
  const ModelConfig& c = part.config;
  const StorageWidth width{sizeof(T), sizeof(Acc<T>)};
  const std::size_t n = static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(sequence);
  const auto own = static_cast<std::size_t>(part.own_rows(static_cast<std::int64_t>(n)));
  // Zeros, since checkpoints take whole slots (parallel.stash = "saved"): gaps, and what a pass does not write, would
  // be other bytes in each run.
  storage_ =
      decltype(storage_)("sestina::activations", slot_bytes(part, range, micro_batch, sequence, width, recompute));
  Cutter<Exec> cut(storage_.data(), storage_.size());
  const LayerSizes sizes = layer_sizes(part, micro_batch, sequence, recompute);
  const std::pair<std::int64_t, std::int64_t> rotated(0, c.query_width() + c.key_value_width());
  LayerActivations<Exec, T> layer;
  for (int l = range.begin; l < range.end; ++l) {
    if (l == range.begin || !recompute) layer = cut_layer<Exec, T>(cut, c, sizes, n, own);
    layer.x = cut.template matrix<T>(sizes.x, own);
    layers.push_back(layer);
    LayerActivations<Exec, T>& last = layers.back();
    if (sizes.h == 0) last.h = last.x;
    if (sizes.h2 == 0) last.h2 = last.x2;
    if (sizes.qk == 0) last.qk = Kokkos::subview(last.qkv, Kokkos::ALL, rotated);
  }
  if (range.begin == 0 && c.embedding_norm) {
    embedded = cut.template matrix<T>(sizes.x, own);
    embedding_norm = {cut.template vector<Acc<T>>(sizes.inverse), cut.template vector<Acc<T>>(sizes.mean)};
  }
  output = cut.template matrix<T>(sizes.x, own);
  gradient = cut.template matrix<T>(sizes.x, own);
  if (range.end == c.num_hidden_layers) {
    h = cut.template matrix<T>(sizes.x, own);
    norm = {cut.template vector<Acc<T>>(sizes.inverse), cut.template vector<Acc<T>>(sizes.mean)};
    token_loss = cut.template vector<Acc<T>>(n);
  }
  SESTINA_REQUIRE(cut.used() == storage_.size(), "{} of {} bytes of the slot are cut", cut.used(), storage_.size());
}

template <class Exec, class T>
void Activations<Exec, T>::split_backward(const ModelPart& part, int micro_batch, int sequence) {
  const std::size_t n = static_cast<std::size_t>(micro_batch) * static_cast<std::size_t>(sequence);
  const auto widths = split_widths(part.config);
  const LayerRange range{0, static_cast<int>(layers.size())};
  kept_storage_ = decltype(kept_storage_)(Kokkos::view_alloc("sestina::kept_gradients", Kokkos::WithoutInitializing),
                                          split_bytes(part, range, micro_batch, sequence, {sizeof(T), sizeof(Acc<T>)}));
  Cutter<Exec> cut(kept_storage_.data(), kept_storage_.size());
  const auto matrix = [&](std::int64_t width) {
    return cut.template matrix<T>(n * static_cast<std::size_t>(width), n);
  };
  const ModelConfig& c = part.config;
  const auto apart = [&](std::int64_t stride, std::int64_t columns) {
    return cut.template apart<T>(n * static_cast<std::size_t>(stride), n, columns);
  };
  for (std::size_t l = 0; l < layers.size(); ++l) {
    BlockGradients<Exec, T> block;
    block.projected = matrix(widths[0]);
    block.qkv = apart(widths[1], c.query_width() + 2 * c.key_value_width());
    block.inner = apart(widths[2], mlp_width(c));
    block.down = matrix(widths[3]);
    block.passed_qkv = matrix(widths[4]);
    block.passed_o = matrix(widths[5]);
    block.passed_up = matrix(widths[6]);
    block.passed_down = matrix(widths[7]);
    block.router = matrix(widths[8]);
    if (part.config.has_experts()) {
      const auto rows = static_cast<std::size_t>(part.expert_rows(static_cast<std::int64_t>(n)));
      const auto at_experts = [&](std::int64_t width) {
        return cut.template matrix<T>(rows * static_cast<std::size_t>(width), rows);
      };
      block.expert_inner = at_experts(part.config.moe_intermediate_size);
      block.expert_rows = at_experts(part.config.hidden_size);
    }
    kept.push_back(block);
  }
}

#define SESTINA_ACTIVATIONS(Exec, T) template class Activations<Exec, T>;
SESTINA_INSTANTIATE(SESTINA_ACTIVATIONS)

}  // namespace sestina
