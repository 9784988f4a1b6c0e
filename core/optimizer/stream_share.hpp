// The stream of the host that updates a matrix (core/optimizer/matrix_set.hpp). No Kokkos.
#pragma once
#include <cstddef>
#include <vector>

namespace sestina {

// Returns the cost of one update of an m x n matrix, up to a factor: products with its Gram matrices.
double stream_cost(std::size_t rows, std::size_t cols);

// Returns the stream of each item: the largest item first, each to the stream with the least so far. stream[i] for
// cost[i].
std::vector<int> balance(const std::vector<double>& cost, int streams);

// Returns as many streams of one thread each as there are threads, if they would all have about the same to do; else
// one.
int stream_count(const std::vector<double>& cost, int threads);

// Returns the bytes of preconditioners in memory at a time where they lie elsewhere between their uses: for each stream
// one matrix in use, one on its way in and one on its way out; for each worker two jobs, which read a basis of their
// matrix too. update, refresh: bytes of the largest matrix, while it is updated, and for its refreshes in addition.
struct PagedAtWork {
  std::size_t updates = 0, jobs = 0;
};
PagedAtWork paged_at_work(std::size_t update, std::size_t refresh, int streams, int workers);
// Returns the bytes on a device, whose workers read copies of their own: only updates use snapshots, to send them.
PagedAtWork paged_on_device(std::size_t update, std::size_t refresh);

}  // namespace sestina
