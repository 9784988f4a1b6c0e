// What refreshes of one stream's matrices need and count: bases, roots and projectors that are computed from factors,
// in the stream itself or by workers.
#pragma once
#include <cstdint>
#include <vector>

#include "core/optimizer/base/optimizer_control.hpp"
#include "core/optimizer/base/refresh_verdict.hpp"

namespace sestina {

// What a refresh may do when it goes wrong; shared by all matrices of a run.
struct RefreshPolicy {
  std::int64_t max_failures = 3;           // in a row, of one factor; then the run stops
  bool stagger = false;                    // refresh matrix i at t = i mod every instead of all at once
  std::int64_t count = 0, window = 0;      // so many refreshes in a window, spread evenly; 0: one in `every` updates
  RefreshDump dump;                        // empty: nobody wants it
  std::vector<std::int64_t> periods = {};  // by MatrixShape::index, in place of `every`; empty: none
};

class RefreshWorkers;  // refresh/refresh_workers.hpp
template <class Space>
class CopyQueue;  // refresh/copy_queue.hpp

template <class Space>
struct RefreshContext {
  explicit RefreshContext(const Space& exec) : checks{exec} {}

  RefreshPolicy policy = {};
  RefreshSeconds seconds = {};         // since they were last read
  std::int64_t failures = 0;           // factors that kept their last good result, since the start
  RefreshChecks<Space> checks;         // of the refresh under way
  QueuedRefreshes<Space> queued = {};  // that a device judges by itself
  RefreshWorkers* workers = nullptr;   // that asynchronous refreshes go to; null: they are put off instead
  CopyQueue<Space>* copies = nullptr;  // to host memory, for them; null: there are no workers
};

}  // namespace sestina
