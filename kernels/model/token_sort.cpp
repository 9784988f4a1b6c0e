#include "kernels/model/token_sort.hpp"

namespace sestina {

template <class Exec>
void sort_tokens(const Exec& exec, Matrix<const std::int32_t, Exec> chosen, Matrix<std::int32_t, Exec> place,
                 Vector<std::int32_t, Exec> token, Vector<std::int64_t, Exec> counts, Workspace<Exec>& workspace) {
  const auto n = static_cast<std::int64_t>(chosen.extent(0)), experts = static_cast<std::int64_t>(counts.size());
  const int k = static_cast<int>(chosen.extent(1));
  const std::int64_t chunks = token_chunks(n);
  auto frame = workspace.frame();
  const TokenSortScratch<Exec> scratch(workspace, n, experts);
  const Matrix<std::int32_t, Exec> next = scratch.counts;
  const Vector<std::int32_t, Exec> first = scratch.first;
  Kokkos::parallel_for(
      "count_choices", Kokkos::RangePolicy<Exec>(exec, 0, chunks), KOKKOS_LAMBDA(const std::int64_t c) {
        for (std::int64_t e = 0; e < experts; ++e) next(c, e) = 0;
        const std::int64_t end = (c + 1) * token_chunk < n ? (c + 1) * token_chunk : n;
        for (std::int64_t row = c * token_chunk; row < end; ++row)
          for (int j = 0; j < k; ++j) ++next(c, chosen(row, j));
      });
  Kokkos::parallel_for(
      "count_before", Kokkos::RangePolicy<Exec>(exec, 0, experts), KOKKOS_LAMBDA(const std::int64_t e) {
        std::int32_t before = 0;
        for (std::int64_t c = 0; c < chunks; ++c) {
          const std::int32_t here = next(c, e);
          next(c, e) = before;
          before += here;
        }
        counts(e) = before;
      });
  Kokkos::parallel_for(
      "first_rows", Kokkos::RangePolicy<Exec>(exec, 0, 1), KOKKOS_LAMBDA(int) {
        std::int64_t sum = 0;
        for (std::int64_t e = 0; e < experts; ++e) {
          first(e) = static_cast<std::int32_t>(sum);
          sum += counts(e);
        }
      });
  Kokkos::parallel_for(
      "place_choices", Kokkos::RangePolicy<Exec>(exec, 0, chunks), KOKKOS_LAMBDA(const std::int64_t c) {
        const std::int64_t end = (c + 1) * token_chunk < n ? (c + 1) * token_chunk : n;
        for (std::int64_t row = c * token_chunk; row < end; ++row)
          for (int j = 0; j < k; ++j) {
            const std::int32_t e = chosen(row, j), at = first(e) + next(c, e)++;
            place(row, j) = at;
            token(at) = static_cast<std::int32_t>(row);
          }
      });
}

#define SESTINA_TOKEN_SORT(Exec)                                                                             \
  template void sort_tokens<Exec>(const Exec&, Matrix<const std::int32_t, Exec>, Matrix<std::int32_t, Exec>, \
                                  Vector<std::int32_t, Exec>, Vector<std::int64_t, Exec>, Workspace<Exec>&);
SESTINA_INSTANTIATE_SPACES(SESTINA_TOKEN_SORT)

}  // namespace sestina
