// Causal attention with grouped queries, blocked so that no (T, T) matrix is ever stored (online softmax:
// Milakov & Gimelshein 2018; blocking both ways: Dao et al. 2022). device/attention_rows.hpp is the
// obvious reference.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

struct AttentionShape {
  int batch = 0;     // B
  int sequence = 0;  // T
  int heads = 0;     // H, a multiple of kv_heads
  int kv_heads = 0;  // K
  int head_dim = 0;  // h, even
  double scale = 0;  // usually h^-1/2
};

// Computes out (N, H*h) from q (N, H*h), k and v (N, K*h), N = B*T; these may be column ranges of one fused buffer.
// lse (B*H*T): log-sum-exp of each row of scores, kept for the backward pass.
// first_key (N), or empty: row r attends keys [first_key(r), r mod T] of its own sequence (document masking).
// largest (H), or empty: each element is raised to the largest score of its head, scale included.
// On a host with products of bf16 (bf16_way), bf16 is multiplied by them, and weights are rounded to bf16 before that.
// On a device with cuDNN it computes bf16 without first_key and largest (device/attention_fused.hpp), and both passes
// may change between it and rows: they keep the same lse.
template <class Exec, class T>
void attention(const Exec&, const AttentionShape&, Matrix<const T, Exec> q, Matrix<const T, Exec> k,
               Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> out,
               Vector<Acc<T>, Exec> lse, Workspace<Exec>&, Vector<Acc<T>, Exec> largest = {});

// Assigns dq, dk and dv. dout and out are (N, H*h). Bits do not depend on the thread count.
template <class Exec, class T>
void attention_backward(const Exec&, const AttentionShape&, Matrix<const T, Exec> dout, Matrix<const T, Exec> q,
                        Matrix<const T, Exec> k, Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key,
                        Matrix<const T, Exec> out, Vector<const Acc<T>, Exec> lse, Matrix<T, Exec> dq,
                        Matrix<T, Exec> dk, Matrix<T, Exec> dv, Workspace<Exec>&);

// The columns of fused buffers: queries and keys are ranges of rows of qk elements, values and all gradients but dout
// of rows of qkv elements. Where they are 0 these are matrices of their own.
struct AttentionColumns {
  int qk = 0, qkv = 0;
};

// Takes what either pass takes at most, on so many threads of the host; threads is 0 on another space, whose library
// (device/attention_fused.hpp) then makes its plans for these matrices.
template <class T, class Exec>
void declare_attention(Workspace<Exec>&, int threads, const AttentionShape&, AttentionColumns = {});
template <class T, class Exec>
void declare_attention(Workspace<Exec>& workspace, const Exec& exec, const AttentionShape& shape,
                       AttentionColumns columns = {}) {
  declare_attention<T, Exec>(workspace, std::is_same_v<Exec, Host> ? threads_of(exec) : 0, shape, columns);
}

// Attention of new positions whose keys and values, and those of all positions before them, lie in a cache: rows of
// (capacity, K*h) for each sequence, one sequence after the other. A place is a row of the cache: sequence * capacity +
// position. R is the number of new positions.

// Copies row r of k and v (R, K*h) into row place(r) of the caches.
template <class Exec, class T>
void store_places(const Exec&, Vector<const std::int32_t, Exec> place, Matrix<const T, Exec> k, Matrix<const T, Exec> v,
                  Matrix<T, Exec> k_cache, Matrix<T, Exec> v_cache);

// Computes one new position of each of several sequences: row r of q (R, H*h) sees the keys of its sequence up to its
// own place. shape.batch = R, shape.sequence = capacity. A row's bits do not depend on the other rows.
template <class Exec, class T>
void attention_step(const Exec&, const AttentionShape&, Vector<const std::int32_t, Exec> place, Matrix<const T, Exec> q,
                    Matrix<const T, Exec> k_cache, Matrix<const T, Exec> v_cache, Matrix<T, Exec> out,
                    Workspace<Exec>&);
// The scores of all positions, and a sum of values, for each row and head.
template <class Exec, class T>
struct AttentionStepScratch {
  AttentionStepScratch(Workspace<Exec>& workspace, const AttentionShape& shape)
      : rows(workspace.template take<Acc<T>>(
            static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.heads),
            static_cast<std::size_t>(shape.sequence + shape.head_dim))) {}
  Matrix<Acc<T>, Exec> rows;  // (R*H, capacity + h)
};

// Computes positions first .. first + n - 1 of one sequence, q and out (n, H*h), from keys and values (first + n, K*h);
// shape is that of the sequence: batch 1, sequence = first + n. first is a multiple of attention_row_block. On the host
// the bits are those of the same rows of attention() over the whole sequence.
inline constexpr int attention_row_block = 64;
template <class Exec, class T>
void attention_continued(const Exec&, const AttentionShape&, int first, Matrix<const T, Exec> q,
                         Matrix<const T, Exec> k, Matrix<const T, Exec> v, Matrix<T, Exec> out, Workspace<Exec>&);
template <class Exec, class T>
void declare_attention_continued(Workspace<Exec>&, const Exec&, const AttentionShape&, int rows);

}  // namespace sestina
