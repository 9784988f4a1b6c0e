// The bytes of optimizer state that lies elsewhere between its uses (optimizer.refresh.tier, optimizer.state_tier), and
// the pieces in which it moves. No Kokkos.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/deck/options.hpp"
#include "core/layout/tensor_spec.hpp"

namespace sestina {

// Returns whether the elementwise rule's state of a tensor lies elsewhere between its uses (optimizer.state_tier): that
// of norms and biases is not worth it.
bool pages_moments(const TensorSpec&, const OptimizerOptions&, MemorySpace);
// Returns the bytes of a field of that state that are in memory at a time, together with those of its other fields: a
// piece, so that a large embedding may be more than memory holds. Moments in 8 bits are not cut.
std::size_t element_piece(const FieldSize&);
// Returns the bytes in memory at a time where a piece of all fields takes so many: it is updated while the next one
// comes and the last one goes.
constexpr std::size_t pieces_at_work(std::size_t piece) { return 3 * piece; }

// The effect of optimizer.refresh.tier and state_tier on one tensor's state, in bytes; nothing where it stays in the
// memory of the space that computes. With a device, results under way lie in host memory, whatever the tier. Unified
// memory counts as host memory, and as the device's as far as its pages are there at a time.
struct PagedBytes {
  std::size_t state = 0;                // part of the state above that is not always in memory
  std::size_t on_disk = 0;              // part of the state above that lies on NVMe
  std::size_t resident = 0;             // of preconditioners that stay in memory although other state does not
  std::size_t results = 0;              // results under way, in the store
  std::size_t nvme = 0, host = 0;       // places in the store: NVMe, with results under way; host memory, of a device
  std::size_t largest = 0;              // the largest field on NVMe
  std::size_t places = 0;               // memory that all fields in the store would take where they are used
  std::size_t update = 0, refresh = 0;  // of one of its matrices: in its update; in addition for its refreshes
  std::size_t piece = 0;                // of what the elementwise rule updates, in memory at a time
  // Bytes to and from the store in an update, refreshes spread over their period: of NVMe; between device and host.
  double nvme_moved = 0, link_moved = 0;
  void add(const PagedBytes&);  // adds another tensor
};
PagedBytes paged_bytes(const TensorSpec&, const OptimizerOptions&, MemorySpace);
// Returns the same for (rows, cols) of a tensor that the elementwise rule updates.
PagedBytes paged_bytes(const TensorSpec&, std::int64_t rows, std::int64_t cols, const OptimizerOptions&,
                       std::size_t accumulate_width, MemorySpace);

}  // namespace sestina
