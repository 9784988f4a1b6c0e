// Attention of new positions whose keys and values, and those of all positions before them, lie in a cache: rows of
// (capacity, K*h) for each sequence, one sequence after the other. A place is a row of the cache: sequence * capacity
// + position.
#pragma once
#include "kernels/model/attention.hpp"

namespace sestina {

// Rows r of k and v (R, K*h) into rows place(r) of the caches.
template <class Exec, class T>
void store_places(const Exec&, Vector<const std::int32_t, Exec> place, Matrix<const T, Exec> k, Matrix<const T, Exec> v,
                  Matrix<T, Exec> k_cache, Matrix<T, Exec> v_cache);

// One new position of each of several sequences: row r of q (R, H*h) sees the keys of its sequence up to its own place.
// shape.batch = R, shape.sequence = capacity. A row's bits do not depend on the other rows.
template <class Exec, class T>
void attention_step(const Exec&, const AttentionShape&, Vector<const std::int32_t, Exec> place, Matrix<const T, Exec> q,
                    Matrix<const T, Exec> k_cache, Matrix<const T, Exec> v_cache, Matrix<T, Exec> out,
                    Workspace<Exec>&);
// Scores of all positions, and a sum of values, for each row and head.
template <class Exec, class T>
struct AttentionStepScratch {
  AttentionStepScratch(Workspace<Exec>& workspace, const AttentionShape& shape)
      : rows(workspace.template take<Acc<T>>(
            static_cast<std::size_t>(shape.batch) * static_cast<std::size_t>(shape.heads),
            static_cast<std::size_t>(shape.sequence + shape.head_dim))) {}
  Matrix<Acc<T>, Exec> rows;  // (R*H, capacity + h)
};

// Positions first .. first + n - 1 of one sequence, q and out (n, H*h), from keys and values (first + n, K*h); shape is
// that of the sequence: batch 1, sequence = first + n. first is a multiple of attention_row_block. On the host the bits
// are those of the same rows of attention() over the whole sequence.
inline constexpr int attention_row_block = 64;
template <class Exec, class T>
void attention_continued(const Exec&, const AttentionShape&, int first, Matrix<const T, Exec> q,
                         Matrix<const T, Exec> k, Matrix<const T, Exec> v, Matrix<T, Exec> out, Workspace<Exec>&);
template <class Exec, class T>
void declare_attention_continued(Workspace<Exec>&, const Exec&, const AttentionShape&, int rows);

}  // namespace sestina
