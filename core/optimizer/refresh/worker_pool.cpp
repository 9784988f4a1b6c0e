#include "core/optimizer/refresh/worker_pool.hpp"

#include <cxxabi.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "core/memory/pager.hpp"
#include "kernels/base/error.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

using Task = std::shared_ptr<WorkerTask>;
using Clock = std::chrono::steady_clock;

struct WorkerPool::Shared {
  Options options;
  std::mutex mutex;
  std::condition_variable for_workers, for_waiters;
  std::vector<Task> queue;  // a heap with the next task in front
  std::vector<Span> spans, taken;
  std::atomic<bool> recording = false;
  std::uint64_t submitted = 0;
  int alive = 0, busy = 0;
  bool stopping = false;

  static bool later(const Task& a, const Task& b) {
    if (a->deadline != b->deadline) return a->deadline > b->deadline;
    if (a->cost != b->cost) return a->cost < b->cost;
    return a->order_ > b->order_;
  }

  // Returns the seconds that the end waits for tasks in hand: a worker that only got no core is not lost.
  std::chrono::duration<double> patience() const {
    constexpr double least = 2;
    return std::chrono::duration<double>(std::max(options.timeout, least));
  }

  Task next() {
    std::unique_lock lock(mutex);
    for_workers.wait(lock, [&] { return stopping || !queue.empty(); });
    if (stopping) return {};
    std::pop_heap(queue.begin(), queue.end(), later);
    Task task = std::move(queue.back());
    queue.pop_back();
    task->state_.store(WorkerTask::State::running, std::memory_order_relaxed);
    ++busy;
    return task;
  }

  void finish(WorkerTask& task, std::exception_ptr error, const Span& span = {}) {
    const std::lock_guard lock(mutex);
    if (span.name != nullptr && spans.size() < spans.capacity()) spans.push_back(span);
    task.error_ = std::move(error);
    --busy;
    task.state_.store(WorkerTask::State::done, std::memory_order_release);
    for_waiters.notify_all();
  }

  // Marks a thread that ends, however it does, so that nobody waits for what it had in hand.
  struct Presence {
    Shared& pool;
    Task task = {};
    ~Presence() {
      if (task) {  // copies of an exception share its text: this one is all that is left when another thread sees it
        std::exception_ptr gone =
            std::make_exception_ptr(Error(ExitCode::unavailable, "the worker that had it is gone"));
        pool.finish(*task, std::move(gone));
      }
      const std::lock_guard lock(pool.mutex);
      --pool.alive;
      pool.for_waiters.notify_all();
    }
  };

  // The system ends a thread by an exception without an object, to which the sanitizer allows no reference.
  __attribute__((no_sanitize("undefined"))) void work(std::size_t worker) {
    Presence presence{*this};
    Pager::pins_aside();
    if (options.priority != 0)  // the value of this thread alone, on Linux
      setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + options.priority);
    while ((presence.task = next())) {
      std::exception_ptr error;
      Span span;
      if (recording) span = {presence.task->name.c_str(), static_cast<int>(worker), Clock::now(), {}};
      try {
        if (options.before_task) options.before_task(*presence.task);
        presence.task->run(worker);
      } catch (const abi::__forced_unwind&) {
        throw;  // the thread is being ended, which Presence notes
      } catch (...) {
        error = std::current_exception();
      }
      const Task task = std::exchange(presence.task, nullptr);
      if (span.name != nullptr) span.end = Clock::now();
      finish(*task, std::move(error), span);
    }
  }
};

void WorkerTask::collect() {
  state_.store(State::idle, std::memory_order_relaxed);
  const std::exception_ptr error = std::exchange(error_, nullptr);
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    const Failure failure = failure_of(e);
    fail(failure.code, "{}: {}", name, failure.message);
  } catch (...) {
    fail(ExitCode::internal, "{}: its worker threw something unknown", name);
  }
}

WorkerPool::WorkerPool(const Options& options, std::size_t most) : shared_(std::make_shared<Shared>()), most_(most) {
  const std::vector<int> cores = options.cores.empty() ? process_cores() : options.cores;
  int error = 0;
  std::thread([&] { error = bind_this_thread(cores); }).join();
  if (error != 0)
    fail(ExitCode::bad_deck, "optimizer.refresh.cores: this process may run on none of [{}] ({})",
         fmt::join(options.cores, ", "), std::strerror(error));
  shared_->options = options;
  shared_->queue.reserve(most);
  shared_->alive = options.workers;
  for (int i = 0; i < options.workers; ++i)
    threads_.push_back(quiet_thread([shared = shared_, i] { shared->work(static_cast<std::size_t>(i)); }, cores));
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::stop() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->queue.clear();
  shared_->for_workers.notify_all();
  const bool over = shared_->for_waiters.wait_for(lock, shared_->patience(), [&] { return shared_->busy == 0; });
  lock.unlock();
  for (std::thread& thread : threads_) {
    if (over)
      thread.join();
    else
      thread.detach();  // the thread shares the ownership of what it uses
  }
  threads_.clear();
}

void WorkerPool::reserve(std::size_t more) {
  const std::lock_guard lock(shared_->mutex);
  most_ += more;
  shared_->queue.reserve(most_);
}

void WorkerPool::withdraw(const std::vector<const WorkerTask*>& tasks) {
  std::unique_lock lock(shared_->mutex);
  std::vector<Task>& queue = shared_->queue;
  const auto is_meant = [&](const Task& task) { return std::count(tasks.begin(), tasks.end(), task.get()) > 0; };
  const auto kept =
      std::stable_partition(queue.begin(), queue.end(), [&](const Task& task) { return !is_meant(task); });
  for (auto task = kept; task != queue.end(); ++task)
    (*task)->state_.store(WorkerTask::State::idle, std::memory_order_relaxed);
  queue.erase(kept, queue.end());
  std::make_heap(queue.begin(), queue.end(), Shared::later);
  const auto rests = [](const WorkerTask* task) { return task->idle() || task->done(); };
  shared_->for_waiters.wait_for(lock, shared_->patience(),
                                [&] { return std::all_of(tasks.begin(), tasks.end(), rests); });
}

void WorkerPool::submit(const Task& task) {
  const std::lock_guard lock(shared_->mutex);
  task->state_.store(WorkerTask::State::waiting, std::memory_order_relaxed);
  task->order_ = shared_->submitted++;
  shared_->queue.push_back(task);
  std::push_heap(shared_->queue.begin(), shared_->queue.end(), Shared::later);
  shared_->for_workers.notify_one();
}

void WorkerPool::wait(const WorkerTask& task) {
  if (task.done()) return;
  std::unique_lock lock(shared_->mutex);
  const double seconds = shared_->options.timeout;
  const auto over = [&] { return task.done() || shared_->alive == 0; };
  shared_->for_waiters.wait_for(lock, std::chrono::duration<double>(seconds), over);
  if (task.done()) return;
  if (shared_->alive == 0) fail(ExitCode::unavailable, "{}: no refresh worker is left to compute it", task.name);
  shared_->options.timeout = 0;  // nobody waits for that worker again
  fail(ExitCode::unavailable, "waited {:g} s for the refresh of {} (run.abort_timeout): its worker is late or hangs",
       seconds, task.name);
}

void WorkerPool::record() {
  const std::lock_guard lock(shared_->mutex);
  shared_->spans.reserve(2 * most_);
  shared_->taken.reserve(shared_->spans.capacity());
  shared_->recording = true;
}

const std::vector<WorkerPool::Span>& WorkerPool::take_spans() {
  const std::lock_guard lock(shared_->mutex);
  std::swap(shared_->spans, shared_->taken);
  shared_->spans.clear();
  return shared_->taken;
}

}  // namespace sestina
