// A few threads in addition to those that compute: they run tasks by deadline, and whoever needs a result waits for it
// at most a given time. The pool knows nothing of matrices.
//
// A worker takes one task at a time, also where many are of one shape: on one core a batch saves only what lies around
// a refresh, half a microsecond, which is 1 to 3 % of one with sides of 32 or 64 and nothing for larger ones; only
// sides of 8 would gain a tenth (regression/bench/bench_refresh_batches.cpp, regression/reports/async_refreshes.md). No
// Kokkos.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace sestina {

// A task is done once or again and again. It belongs to the one who submits it and, while it is queued or running, to
// the pool as well, so that a thread that hangs never reads memory that is gone.
class WorkerTask {
 public:
  enum class State : std::uint8_t { idle, waiting, running, done };

  virtual ~WorkerTask() = default;
  virtual void run(std::size_t worker) = 0;  // on one of the pool's threads; what it throws is kept

  std::string name;           // for messages
  std::int64_t deadline = 0;  // the smallest goes first
  double cost = 0;            // among equal deadlines the largest goes first

  bool idle() const { return state_.load(std::memory_order_acquire) == State::idle; }
  bool done() const { return state_.load(std::memory_order_acquire) == State::done; }
  // Returns a task that is done to idle; throws what run() threw, as an Error that names the task.
  void collect();

 private:
  friend class WorkerPool;
  std::atomic<State> state_{State::idle};
  std::uint64_t order_ = 0;
  std::exception_ptr error_;
};

class WorkerPool {
 public:
  struct Options {
    int workers = 1;
    std::vector<int> cores;  // cores that they may run on; empty: all of the process, even if the main thread is bound
    int priority = 0;        // added to the nice value of the threads
    double timeout = 60;     // seconds that a wait lasts
    // Called before each task, by its worker: tests delay, throw and hang here.
    std::function<void(const WorkerTask&)> before_task = {};
  };
  // A task in the hands of a worker, for a trace.
  struct Span {
    const char* name = nullptr;  // that of the task, as long as it lives and keeps it
    int worker = 0;
    std::chrono::steady_clock::time_point begin, end;
  };
  // most: tasks that are in the pool at one time. Error(bad_deck) for cores that do not exist.
  WorkerPool(const Options&, std::size_t most);
  // Drops waiting tasks and lets running ones end, though not for longer than the timeout.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Lets so many more tasks be in the pool at one time.
  void reserve(std::size_t more);
  // Withdraws tasks whose owner ends: those that wait are dropped, and it returns when no worker has one in hand, or
  // after the timeout.
  void withdraw(const std::vector<const WorkerTask*>&);

  // Submits an idle task. Takes one lock, allocates nothing.
  void submit(const std::shared_ptr<WorkerTask>&);
  // Returns when the task is done. Error(unavailable) with its name when the timeout is over or no worker is left.
  void wait(const WorkerTask&);

  // Notes tasks that end from here on; before, that costs nothing.
  void record();
  // Returns the tasks that ended since the last call, each worker's in their order; good until the next call, which is
  // to come as often as every task is submitted twice: what there is no room for is left out. Allocates nothing.
  const std::vector<Span>& take_spans();

 private:
  void stop();

  struct Shared;  // shared with the threads, which may outlive the pool when they hang
  std::shared_ptr<Shared> shared_;
  std::size_t most_;
  std::vector<std::thread> threads_;
};

}  // namespace sestina
