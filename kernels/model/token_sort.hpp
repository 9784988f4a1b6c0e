// Sorting of tokens by the experts that they chose. Each of N tokens has k choices among E experts, so there are R = N
// k rows, sorted by expert and, within an expert, by token and then by the order of choices. Nothing here depends on
// the number of threads.
#pragma once
#include "kernels/blas/exec.hpp"
#include "kernels/blas/workspace.hpp"

namespace sestina {

// Tokens are counted chunk by chunk of so many, each by one thread.
inline constexpr std::int64_t token_chunk = 64;
inline std::int64_t token_chunks(std::int64_t n) { return (n + token_chunk - 1) / token_chunk; }

template <class Exec>
struct TokenSortScratch {
  TokenSortScratch(Workspace<Exec>& workspace, std::int64_t n, std::int64_t experts)
      : counts(workspace.template take<std::int32_t>(static_cast<std::size_t>(token_chunks(n)),
                                                     static_cast<std::size_t>(experts))),
        first(workspace.template take<std::int32_t>(static_cast<std::size_t>(experts))) {}
  Matrix<std::int32_t, Exec> counts;  // (chunks, E) of choices, then how many of them come in chunks before
  Vector<std::int32_t, Exec> first;   // (E) first row
};

// Computes place (N, k), the row of each choice; token (R), the token of each row; counts (E), the rows of each expert;
// from chosen (N, k), numbers of experts.
template <class Exec>
void sort_tokens(const Exec&, Matrix<const std::int32_t, Exec> chosen, Matrix<std::int32_t, Exec> place,
                 Vector<std::int32_t, Exec> token, Vector<std::int64_t, Exec> counts, Workspace<Exec>&);

}  // namespace sestina
