// The interface to the optimizer of a stage between its updates: to its preconditioners, where they lie and how old
// they are. No Kokkos.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sestina {

class Pager;
class WorkerPool;

// Called with a factor that could not be decomposed: its name, and d x d values, row-major.
using RefreshDump = std::function<void(const std::string& name, const std::vector<float>& values, std::size_t d)>;

// Seconds that refreshes take.
struct RefreshSeconds {
  double waits = 0;    // in updates: for results, or in inline refreshes
  double copies = 0;   // in updates: snapshots for workers, and results put in place (on a device: queuing them)
  double workers = 0;  // in workers: for the results that were taken
};

// What refreshes by drift did (optimizer.refresh.every = "drift"): the sides that were refreshed, and the largest drift
// that was told (-1: none was), which is that of checks in the update before.
struct RefreshDrift {
  std::int64_t sides = 0;
  double largest = -1;
  void add(const RefreshDrift& other) {
    sides += other.sides;
    largest = std::max(largest, other.largest);
  }
};

// Updates since the snapshots were taken from which the bases, roots and projectors in use come.
struct RefreshAges {
  std::int64_t max = 0, sum = 0, count = 0;
  void add(const RefreshAges& other) {
    max = std::max(max, other.max);
    sum += other.sum;
    count += other.count;
  }
};

// Matrix products since they were last counted.
struct ProductCount {
  double seconds = 0, flops = 0;
};

class OptimizerControl {
 public:
  virtual ~OptimizerControl() = default;
  virtual RefreshSeconds take_refresh_seconds() = 0;
  virtual RefreshDrift take_refresh_drift() = 0;  // since the last call
  virtual RefreshAges refresh_ages() const = 0;
  virtual std::int64_t refresh_failures() const = 0;
  virtual WorkerPool* workers() = 0;  // null: no asynchronous refreshes
  // Sets the receiver of factors that could not be decomposed; it is called from any stream.
  virtual void dump_failures(const RefreshDump&) = 0;
  // Called before the first update, see MatrixSet.
  virtual void set_refresh_periods(const std::vector<std::int64_t>&) = 0;
  virtual void set_refresh_staleness(std::int64_t updates) = 0;
  virtual void set_refresh_executors(const std::vector<std::uint8_t>& in_update) = 0;
  virtual void page_to(const std::shared_ptr<Pager>&) = 0;
};

}  // namespace sestina
