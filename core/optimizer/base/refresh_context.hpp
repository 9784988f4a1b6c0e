// What refreshes of one stream's matrices need and count: bases, roots and projectors that are computed from factors, in
// the stream itself or by workers.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/optimizer/base/refresh_verdict.hpp"

namespace sestina {

// Called with a factor that could not be decomposed: its name, and d x d values, row-major.
using RefreshDump = std::function<void(const std::string& name, const std::vector<float>& values, std::size_t d)>;

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

// Seconds in refreshes.
struct RefreshSeconds {
  double waits = 0;    // of updates: for results, or in refreshes of their own
  double copies = 0;   // of updates: snapshots for workers, and results put in place (of a device: asking for them)
  double workers = 0;  // of workers: on the results that were taken
};

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
