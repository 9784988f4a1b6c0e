// Decoding with a cache of keys and values: each new position passes through the layers once and attends what earlier
// positions left. It decodes S sequences, each with its own length. All layers of the model are here, of one rank
// whole; of a tensor-parallel group each rank has its part of them, as in training but with all rows of the residual
// stream. Then a rank keeps keys and values of its own heads, and all gather the logits: the same bits on each of them.
// Shapes: K key/value heads (of this rank) of dimension h, V tokens of the vocabulary.
//
// A new position of each sequence (step) takes products that only read the weights, and on the host its bits do not
// depend on the other sequences. In deterministic mode a position is computed as the row of the full window that it is:
// products on the host are made of tiles of 256 rows, so the whole tile in which it lies passes through the layers, and
// logits equal those of a window of max_position_embeddings tokens to the bit (on a device, and in mixtures of experts,
// whose rows lie where choices put them, within rounding).
#pragma once
#include <vector>

#include "core/model/activations.hpp"
#include "core/model/context.hpp"
#include "core/model/weights.hpp"
#include "core/token_decoder.hpp"

namespace sestina {

// Returns the bytes of the one allocation for keys and values of a rank with these sizes; element: bytes of the compute
// type.
std::size_t cache_bytes(const ModelConfig&, const DecoderOptions&, std::size_t element);

template <class Exec, class T>
class Decoder final : public TokenDecoder {
 public:
  // whole: the model of all ranks, of which the weights are this rank's part; the group has those ranks, which all make
  // the same calls but for logits(); null: this one alone. Weights and group must outlive the decoder. All memory is
  // taken here: no later call allocates, once products of each shape have been seen.
  Decoder(const Exec&, const ModelConfig& whole, const Weights<Exec, T>&, const DecoderOptions&,
          GroupOps<Exec>* group = nullptr);

  void prefill(int sequence, const std::int32_t* tokens, int count) override;
  void step(int n, const int* sequences, const std::int32_t* tokens) override;
  const float* logits(int row) override;
  void copy(int from, int to) override;
  void clear(int sequence) override { history_[static_cast<std::size_t>(sequence)].clear(); }
  int length(int sequence) const { return static_cast<int>(history_[static_cast<std::size_t>(sequence)].size()); }
  const ModelConfig& config() const override { return whole_; }
  const DecoderOptions& options() const override { return options_; }

 private:
  using Memory = typename Exec::memory_space;
  using Indices = Kokkos::View<std::int32_t**, Kokkos::LayoutRight, Memory>;
  using Table = Kokkos::View<float**, Kokkos::LayoutRight, Memory>;
  enum Field { token_field, place_field, position_field };  // rows of indices_

  // The rows that go through the layers at once: a stretch of one sequence, or (sequence -1) a new position of each of
  // several.
  struct Pass {
    int rows, sequence = -1, first = 0;
    bool step() const { return sequence < 0; }
  };

  struct PassPieces;
  std::size_t scratch() const;  // bytes that the largest pass takes
  void declare_pass(Workspace<Exec>&, int rows, bool step) const;
  void make_tables();
  void chunk(int sequence, int first, int rows);
  void run(const Pass&);
  void embed_rows(const Pass&, const PassPieces&, Matrix<T, Exec> x);
  void block(const Pass&, std::size_t layer, LayerActivations<Exec, T>&, Matrix<const T, Exec> stream,
             Matrix<const T, Exec> pending, Matrix<T, Exec> branch);
  void attend(const Pass&, std::size_t layer, LayerActivations<Exec, T>&, Matrix<T, Exec> branch);
  void head(int row, int rows);
  Matrix<T, Exec> own_logits(int begin, int end, int rows) const;  // rows [begin, end) of so many
  void gather_logits(int rows);
  Matrix<T, Exec> cached(std::size_t layer, int part) const;  // (places, K*h): keys (0) or values (1)
  Vector<const std::int32_t, Exec> index(Field, int rows) const;

  DecoderOptions options_;
  int rows_;   // rows of the largest pass
  int width_;  // positions a cached sequence has room for: the capacity in whole tiles
  ModelConfig whole_;
  const Weights<Exec, T>& weights_;
  GroupOps<Exec> alone_;
  Gemm<Exec> gemm_;
  Workspace<Exec> workspace_;
  Context<Exec> context_;
  Kokkos::View<T****, Kokkos::LayoutRight, Memory> cache_;  // layer, keys and values, place, (K*h)
  Activations<Exec, T> slot_;                               // activations of one layer, and those after the last
  Table cosine_, sine_;                                     // (width, h/2), empty where positions are learned
  Indices indices_;                                         // (3, rows)
  typename Indices::host_mirror_type host_indices_;
  // Of each rank its part of the vocabulary: logits of the rows of the last pass, one after the other, in room for S
  // rows of the largest part.
  Kokkos::View<T*, Memory> logits_;
  int shown_ = 0;                          // rows of the last pass
  std::vector<std::int64_t> first_token_;  // by rank: the first of its part; and after the last one V
  Table wide_;                             // (S, V)
  typename Table::host_mirror_type host_logits_;
  std::vector<std::vector<std::int32_t>> history_;  // tokens of each sequence
};

}  // namespace sestina
