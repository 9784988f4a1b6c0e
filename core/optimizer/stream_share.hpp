// Which stream of the host updates which matrix (core/optimizer/matrix_set.hpp). No Kokkos.
#pragma once
#include <cstddef>
#include <vector>

namespace sestina {

// What one update of an m x n matrix costs, up to a factor: products with its Gram matrices.
double stream_cost(std::size_t rows, std::size_t cols);

// Which stream takes which item: largest first, each to the stream with the least so far. stream[i] for cost[i].
std::vector<int> balance(const std::vector<double>& cost, int streams);

// So many streams of one thread each as there are threads, if they would all have about the same to do; else one.
int stream_count(const std::vector<double>& cost, int threads);

// Bytes of preconditioners in memory at a time where they lie elsewhere between their uses: of each stream one matrix
// in use, one on its way in and one on its way out; of each worker two jobs, which read a basis of their matrix too.
// update, refresh: of the largest matrix, while it is updated, and by its refreshes besides.
struct PagedAtWork {
  std::size_t updates = 0, jobs = 0;
};
PagedAtWork paged_at_work(std::size_t update, std::size_t refresh, int streams, int workers);
// On a device, whose workers read copies of their own: updates alone send snapshots.
PagedAtWork paged_on_device(std::size_t update, std::size_t refresh);

}  // namespace sestina
