// Causal attention with grouped queries, blocked so that no (T, T) matrix is ever stored (online softmax:
// Milakov & Gimelshein 2018; blocking both ways: Dao et al. 2022). attention_rows.hpp is the obvious reference.
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

// q (N, H*h), k and v (N, K*h): column ranges of one fused buffer are fine. out (N, H*h).
// lse (B*H*T): log-sum-exp of each row of scores, kept for the backward pass.
// first_key (N), or empty: row r attends keys [first_key(r), r mod T] of its own sequence (document masking).
// largest (H), or empty: raised to the largest score of each head, scale included.
template <class Exec, class T>
void attention(const Exec&, const AttentionShape&, Matrix<const T, Exec> q, Matrix<const T, Exec> k,
               Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key, Matrix<T, Exec> out,
               Vector<Acc<T>, Exec> lse, Workspace<Exec>&, Vector<Acc<T>, Exec> largest = {});

// dq, dk, dv are assigned. dout and out (N, H*h). Bits do not depend on the thread count.
template <class Exec, class T>
void attention_backward(const Exec&, const AttentionShape&, Matrix<const T, Exec> dout, Matrix<const T, Exec> q,
                        Matrix<const T, Exec> k, Matrix<const T, Exec> v, Vector<const std::int32_t, Exec> first_key,
                        Matrix<const T, Exec> out, Vector<const Acc<T>, Exec> lse, Matrix<T, Exec> dq,
                        Matrix<T, Exec> dk, Matrix<T, Exec> dv, Workspace<Exec>&);

// What either pass takes at most, on so many threads of the host; 0: on another space.
template <class T, class Exec>
void declare_attention(Workspace<Exec>&, int threads, const AttentionShape&);
template <class T, class Exec>
void declare_attention(Workspace<Exec>& workspace, const Exec& exec, const AttentionShape& shape) {
  declare_attention<T, Exec>(workspace, std::is_same_v<Exec, Host> ? threads_of(exec) : 0, shape);
}

}  // namespace sestina
