// Threads of the process: the cores that they run on, the signals that they never see, loops over chunks on several
// of them, and the seconds that work takes. No Kokkos.
#pragma once
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace sestina {

// This header lists the cores of the process and starts threads on cores of their own. A thread inherits the mask of
// the one that starts it, and OpenMP binds the main thread to one core (OMP_PROC_BIND) when its library is loaded,
// before anybody can ask: helper threads would all share that core with it.

// Returns the cores that the process was given, whichever thread asks: all places of OpenMP, which it makes of them
// before it binds a thread, and the mask of the main thread.
std::vector<int> process_cores();

// Binds the calling thread, and the threads that it starts later, to these cores. Returns 0, or errno where it may run
// on none of them; then nothing has changed.
int bind_this_thread(const std::vector<int>& cores);

// Gives the calling thread, and those that it starts later, time slices of 0.3 ms in place of the system's (3 ms on
// many machines), where Linux lets a process choose (6.12 and later). On a core that several share, a thread that wakes
// for a message then goes first, and does not wait for the end of a slice of those that compute.
void shorten_time_slices();
// Returns the length of the calling thread's slices in seconds; 0 where Linux does not tell.
double time_slice_seconds();

// A thread of ours never sees a signal (signals are the main thread's business) and may run on all cores of the
// process.

// All signals but those of a fault of the thread itself are blocked in the calling thread while one of these lives, and
// in every thread that is started meanwhile for good, because a thread inherits the mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Starts a thread that never sees a signal, on these cores, wherever the calling thread is bound. It binds itself: were
// the main thread bound meanwhile, process_cores() would tell others of that mask.
template <class Work>
std::thread quiet_thread(Work&& work, std::vector<int> cores = process_cores()) {
  const SignalsBlocked blocked;
  return std::thread([work = std::forward<Work>(work), cores = std::move(cores)]() mutable {
    bind_this_thread(cores);
    work();
  });
}

inline int thread_count(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(process_cores().size()));
}

// Calls work(begin, end) for the chunks of [0, count), in any order, on at most `threads` threads (0: all cores).
// The first exception stops the loop and is thrown here.
template <class Work>
void parallel_chunks(std::uint64_t count, std::uint64_t chunk, int threads, const Work& work) {
  std::atomic<std::uint64_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;
  const auto run = [&] {
    try {
      for (std::uint64_t begin; (begin = next.fetch_add(chunk)) < count;) work(begin, std::min(begin + chunk, count));
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
      next = count;
    }
  };
  const auto helpers = std::min<std::uint64_t>(thread_count(threads), (count + chunk - 1) / chunk);
  std::vector<std::thread> pool;
  for (std::uint64_t i = 1; i < helpers; ++i) pool.push_back(quiet_thread(run));
  run();
  for (auto& thread : pool) thread.join();
  if (error) std::rethrow_exception(error);
}

// Time on the host, in seconds.

// Returns the seconds since an arbitrary start, from a monotonic clock.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the seconds for which it lives to a sum.
class SecondsSpent {
 public:
  explicit SecondsSpent(double& sum) : sum_(sum) {}
  ~SecondsSpent() { sum_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }
  SecondsSpent(const SecondsSpent&) = delete;
  SecondsSpent& operator=(const SecondsSpent&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& sum_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace sestina
