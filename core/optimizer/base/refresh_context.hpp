// The context of the refreshes of one stream's matrices, with what they count: bases, roots and projectors are computed
// from factors, in the stream itself or by workers.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/optimizer/base/optimizer_control.hpp"
#include "kernels/blas/host_values.hpp"
#include "kernels/blas/stopwatch.hpp"
#include "kernels/blas/sums.hpp"

namespace sestina {

// A device judges refreshes by itself: what a decomposition must satisfy is computed after it, a verdict is made from
// that in the space, and results are published there only if it is good. The host does not wait: it books verdicts at
// the next update, before which it has waited for the norm of the gradients anyway.

// A verdict as it lies in the space. failed: more digits may help.
enum class Verdict { zero_factor = 0, good = 1, failed = 2, factor_not_finite = 3 };

// How the jobs on this stream are judged, one at a time.
template <class Space>
struct RefreshChecks {
  explicit RefreshChecks(const Space& exec) : watch(exec) {
    if constexpr (!is_host<Space>) let_space_judge();
  }
  void let_space_judge() {
    verdict = HostValues<Space>("sestina::refresh_verdict", 1);
    solver = decltype(solver)("sestina::solver_info", 1);
  }
  bool by_space() const { return verdict.size() > 0; }

  // Of a job that is waited for. Empty: the host looks at each number as soon as it is known.
  HostValues<Space> verdict;
  Kokkos::View<std::int32_t*, typename Space::memory_space> solver;  // (1) see Solver::report_to; 0 between jobs
  Stopwatch<Space> watch;
};

// What a job on a (d, d) factor is judged by: sums of squares, by chunks (squares_of_chunks), of the factor, of the d
// orthonormal columns of its basis, and of one more array that must be finite: product, eigenvalues or root.
template <class Space>
struct JudgedSums {
  JudgedSums() = default;
  JudgedSums(Workspace<Space>& workspace, std::size_t d) {
    for (Vector<double, Space>* sums : {&factor, &basis, &other}) *sums = SumScratch<Space>(workspace, d * d).chunks;
  }
  Vector<double, Space> factor, basis, other;
};
// Makes verdict (1) from them and from what the solver has left. Does not wait.
template <class Space>
void make_verdict(const Space&, const RefreshChecks<Space>&, const JudgedSums<Space>&, std::size_t d,
                  Vector<double, Space> verdict);

// Returns whether d columns with this sum of squares are orthonormal: libraries that go wrong without saying so leave
// NaN or columns of another length; those bases must not be published.
KOKKOS_INLINE_FUNCTION bool is_orthonormal(double squares, std::size_t d) {
  constexpr double tolerance = 1e-3;
  const auto expected = static_cast<double>(d);
  return Kokkos::abs(squares - expected) <= tolerance * expected;
}

// Sets y = float(x), for a basis whose columns are the rows of x too, or order = from, where the verdict is good; else
// y stays, and the order is that of columns that stay. Without a verdict (0) the result is good, as the host has found.
template <class Space, class From>
void publish_values(const Space&, Vector<const double, Space> verdict, Vector<const From, Space> x,
                    Vector<float, Space> y);
template <class Space, class From>
void publish_columns(const Space&, Vector<const double, Space> verdict, Matrix<const From, Space> x,
                     Matrix<float, Space> y);
template <class Space>
void publish_order(const Space&, Vector<const double, Space> verdict, Vector<const std::int32_t, Space> from,
                   Vector<std::int32_t, Space> order);

// Counters that the host keeps of a side; null: not kept.
struct SideCounts {
  std::int64_t* failures = nullptr;       // in a row
  std::int64_t* computed_from = nullptr;  // 1 + update of the snapshot that the result in use comes from
  std::int64_t* results = nullptr;        // so far
  void book(std::int64_t from) const {
    *computed_from = 1 + from;
    if (results != nullptr) ++*results;
  }
};

// Jobs whose verdicts the host has not booked yet, each with a place of its own.
template <class Space>
class QueuedRefreshes {
 public:
  // A refresh that the host has booked as if it were good.
  struct Booking {
    std::string_view name;  // name of the factor; outlives the booking
    std::size_t d = 0;      // its size
    SideCounts counts = {};
    std::int64_t before = 0;  // computed_from if the result is not published
    void undo() const {
      *counts.computed_from = before;
      if (counts.results != nullptr) --*counts.results;
    }
  };

  QueuedRefreshes() = default;  // without queue: the host waits for each job
  QueuedRefreshes(const Space&, std::size_t jobs);
  bool on() const { return !watches_.empty(); }
  bool empty() const { return bookings_.empty(); }

  // Starts the next job of the update under way; its verdict goes to the place returned.
  Vector<double, Space> start(const Booking&);
  // Ends that job.
  void finish(const Space&);

  // Called before each job of update t: the first call books the queued jobs of another update by book(Booking,
  // Verdict, seconds), waiting where the space is not there yet. Returns whether update t begins with this call.
  template <class Book>
  bool begin_update(const Space& exec, std::int64_t t, const Book& book) {
    if (t == update_) return false;
    update_ = t;
    if (bookings_.empty()) return true;
    if (!arrived()) exec.fence("refresh");
    for (std::size_t i = 0; i < bookings_.size(); ++i)
      book(bookings_[i], static_cast<Verdict>(static_cast<int>(verdicts_[i])), watches_[i].seconds());
    bookings_.clear();
    return true;
  }

 private:
  bool arrived() const;

  std::int64_t update_ = 0;
  HostValues<Space> verdicts_;
  std::vector<Stopwatch<Space>> watches_;
  std::vector<Booking> bookings_;
};

// Checks of how far factors are from diagonal in the bases in use. The host books them at the next update, on every
// space, so that it never waits: a side whose drift lies beyond the bound is refreshed then.
template <class Space>
class DriftChecks {
 public:
  DriftChecks() = default;  // refreshes come by period
  // checks: in one update, at most.
  DriftChecks(double bound, std::size_t checks) : bound_(bound), drifts_("sestina::basis_drifts", checks) {
    due_.reserve(checks);
  }

  // Starts a check, whose drift goes to the place returned; due becomes 1 where it lies beyond the bound, else 0.
  Vector<double, Space> start(std::int64_t& due);
  // Ends that check.
  void finish(const Space&);
  bool empty() const { return due_.empty(); }  // none waits to be booked
  // Books all checks, waiting where the space is not there yet.
  void book(const Space&);

  RefreshDrift found = {};  // since it was last read

 private:
  double bound_ = 0;
  HostValues<Space> drifts_;
  std::vector<std::int64_t*> due_;  // of the checks that are not booked
};

// The rules for refreshes: their times, and what happens when they go wrong; shared by all matrices of a run.
struct RefreshPolicy {
  std::int64_t max_failures = 3;           // in a row, of one factor; then the run stops
  bool stagger = false;                    // refresh matrix i at t = i mod every instead of all at once
  std::int64_t count = 0, window = 0;      // so many refreshes in a window, spread evenly; 0: one in `every` updates
  RefreshDump dump;                        // empty: nobody wants it
  std::vector<std::int64_t> periods = {};  // by MatrixShape::index, in the place of `every`; empty: none
  std::int64_t staleness = 0;              // in the place of MatrixOptions::refresh_staleness; 0: that one
  // By MatrixShape::index: 1 where the update itself refreshes, and no worker (optimizer.refresh.executor = "auto").
  std::vector<std::uint8_t> in_update = {};  // empty: 0
  bool is_in_update(std::int64_t index) const {
    return !in_update.empty() && in_update[static_cast<std::size_t>(index)] != 0;
  }
};

class RefreshWorkers;  // refresh/refresh_workers.hpp
template <class Space>
class CopyQueue;  // refresh/copy_queue.hpp
template <class Space>
class RefreshBatch;  // refresh/refresh_batch.hpp

template <class Space>
struct RefreshContext {
  explicit RefreshContext(const Space& exec) : checks{exec} {}

  RefreshPolicy policy = {};
  RefreshSeconds seconds = {};           // since they were last read
  std::int64_t failures = 0;             // factors that kept their last good result, since the start
  RefreshChecks<Space> checks;           // checks of the refresh under way
  QueuedRefreshes<Space> queued = {};    // refreshes that a device judges by itself
  RefreshBatch<Space>* batch = nullptr;  // where queued jobs that decompose are put off; null: they are not
  DriftChecks<Space> drift = {};         // refreshes that are started by drift
  RefreshWorkers* workers = nullptr;     // run asynchronous refreshes; null: these are put off instead
  CopyQueue<Space>* copies = nullptr;    // copies to host memory for workers; null: there are none
};

}  // namespace sestina
