// Attention in bf16 by products of the processor's own: AMX tiles, or AVX-512 dot products of pairs. Products take bf16
// and sum in fp32; weights and slopes are rounded to bf16 before they are multiplied. attention_rows.hpp is the
// reference. No Kokkos.
//
// Scores are computed transposed, keys down and queries across (S^T = K Q^T), so that whatever belongs to a query
// (largest score, sum of weights, log-sum-exp) is a lane of a vector, and nothing is reduced across lanes. Keys pass
// by in blocks (online softmax: Milakov & Gimelshein 2018; both passes: Dao et al. 2022).
//
// Kinds of panels, all of bits of bf16, padded with zeros to multiples of 32 in both directions:
//   rows      (n, width), as in memory: a left operand.
//   columns   blocks of key_block rows transposed, (width, key_block) each: a left operand.
//   pairs     strips of 16 columns, each (depth / 2, 16, 2): a right operand; two neighbours along the depth lie
//             together, as the instructions take them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/blas/instruction_set.hpp"

namespace sestina::host {

using Bits = std::uint16_t;

namespace attention_bf16 {
inline constexpr int group = 32;         // rows and columns that are multiplied at a time: two by two tiles
inline constexpr int key_block = 128;    // keys between two looks at the largest score
inline constexpr int query_block = 128;  // queries of the backward pass whose gradients are summed at a time
}  // namespace attention_bf16

// The rows of one head, or of neighbouring heads, in a matrix: row r begins at data + r * stride.
template <class T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride = 0;
};

// The query heads that share one head of keys and values, in one sequence.
struct HeadGroup {
  int sequence, head_dim, heads;
  float scale;                    // above 0
  const std::int32_t* first_key;  // of each row of the sequence, or null: row r sees keys first_key[r] .. r
  HeadRows<const Bits> q, k, v;   // k and v from position 0, q from `start`
  int start;                      // first position that q, out and lse have, a multiple of 32
};

struct GroupForward {
  HeadGroup g;
  HeadRows<Bits> out;
  float* lse;  // (heads, sequence - start)
};

struct GroupBackward {
  HeadGroup g;
  HeadRows<const Bits> dout, out;
  const float* lse;  // (heads, sequence)
  HeadRows<Bits> dq, dk, dv;
};

// Bytes that a pass takes, multiples of 64: `panels` for a group, `scratch` for each thread that works at it.
struct PassMemory {
  std::size_t panels, scratch;
};

// The passes on one kind of processor. Memory is aligned to 64 bytes.
struct AttentionBf16 {
  PassMemory (*forward_memory)(int sequence, int head_dim);
  PassMemory (*backward_memory)(int sequence, int head_dim);
  // Packs keys and values of the group for attend().
  void (*pack)(const GroupForward&, void* panels);
  // Computes rows [begin, end) of one head, begin a multiple of 32, and returns their largest score.
  float (*attend)(const GroupForward&, const void* panels, int head, int begin, int end, void* scratch);
  // Computes all gradients of the group.
  void (*differentiate)(const GroupBackward&, void* panels, void* scratch);
};

// Returns the passes for a way of multiplying, which is that of this processor; null where it has no such products.
const AttentionBf16* attention_bf16_passes(Bf16Way);
const AttentionBf16* attention_bf16_tiles();         // x86-64 alone
const AttentionBf16* attention_bf16_dot_products();  // x86-64 alone

}  // namespace sestina::host
