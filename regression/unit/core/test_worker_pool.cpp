// Threads that run tasks by deadline: order, failures as values, waits that end whatever becomes of a worker, and ten
// thousand tasks against a model of their states.
#include "core/optimizer/refresh/worker_pool.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <random>

#include "kernels/base/error.hpp"

namespace sestina {
namespace {

using namespace std::chrono_literals;

struct Task : WorkerTask {
  explicit Task(std::string what, std::function<void()> to_do = {}) : work(std::move(to_do)) { name = std::move(what); }
  void run(std::size_t) override {
    if (work) work();
  }
  std::function<void()> work;
};
using TaskPtr = std::shared_ptr<Task>;

std::string error_of(const std::function<void()>& what, ExitCode code) {
  try {
    what();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// Held back until open() is called.
struct Gate {
  void pass() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_open; });
  }
  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = false;
};

TEST(WorkerPool, RunsByDeadlineAndThenTheLargestFirst) {
  Gate gate;
  std::mutex mutex;
  std::string order;
  WorkerPool pool({.workers = 1}, 8);
  const auto first = std::make_shared<Task>("first", [&] { gate.pass(); });
  pool.submit(first);
  std::vector<TaskPtr> tasks;
  struct Want {
    char name;
    std::int64_t deadline;
    double cost;
  };
  for (const Want& want : {Want{'d', 9, 5}, {'c', 7, 1}, {'a', 3, 1}, {'b', 7, 2}, {'e', 9, 5}}) {
    const auto task = std::make_shared<Task>(std::string(1, want.name), [&order, &mutex, want] {
      const std::lock_guard lock(mutex);
      order += want.name;
    });
    task->deadline = want.deadline;
    task->cost = want.cost;
    pool.submit(task);
    tasks.push_back(task);
  }
  gate.open();
  for (const TaskPtr& task : tasks) pool.wait(*task);
  EXPECT_EQ(order, "abcde");
}

TEST(WorkerPool, TellsWhatEachWorkerHadAndWhen) {
  constexpr std::size_t most = 6;
  WorkerPool pool({.workers = 2}, most);
  std::vector<TaskPtr> tasks;
  for (std::size_t i = 0; i < most; ++i)
    tasks.push_back(std::make_shared<Task>("side " + std::to_string(i), [] { std::this_thread::sleep_for(200us); }));
  const auto run_all = [&] {
    for (const TaskPtr& task : tasks) pool.submit(task);
    for (const TaskPtr& task : tasks) {
      pool.wait(*task);
      task->collect();
    }
  };
  run_all();
  EXPECT_TRUE(pool.take_spans().empty());  // nobody asked for them
  pool.record();
  for (int round = 0; round < 2; ++round) {
    const auto before = std::chrono::steady_clock::now();
    run_all();
    const auto after = std::chrono::steady_clock::now();
    const std::vector<WorkerPool::Span>& spans = pool.take_spans();
    std::map<std::string, int> seen;
    std::map<int, std::chrono::steady_clock::time_point> free;
    for (const WorkerPool::Span& span : spans) {
      ++seen[span.name];
      EXPECT_TRUE(span.worker == 0 || span.worker == 1);
      EXPECT_GE(span.end - span.begin, 200us);
      EXPECT_GE(span.begin, std::max(before, free[span.worker]));  // one after another
      EXPECT_LE(span.end, after);
      free[span.worker] = span.end;
    }
    EXPECT_EQ(seen.size(), most);
    EXPECT_EQ(spans.size(), most);
  }
  EXPECT_TRUE(pool.take_spans().empty());
  for (int round = 0; round < 5; ++round) run_all();  // nobody looks
  EXPECT_GE(pool.take_spans().size(), 2 * most);
  EXPECT_LE(pool.take_spans().capacity(), 2 * most);
}

TEST(WorkerPool, WorkersSeeNoSignals) {
  sigset_t mask;
  sigemptyset(&mask);
  const auto task = std::make_shared<Task>("mask", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &mask); });
  WorkerPool pool({}, 1);
  pool.submit(task);
  pool.wait(*task);
  EXPECT_EQ(sigismember(&mask, SIGTERM), 1);
  EXPECT_EQ(sigismember(&mask, SIGUSR1), 1);
}

TEST(WorkerPool, WhatATaskThrowsIsToldByTheOneWhoCollects) {
  WorkerPool pool({}, 3);
  const auto bad = std::make_shared<Task>("block_1", [] { throw std::bad_alloc(); });
  const auto worse = std::make_shared<Task>("block_2", [] { fail(ExitCode::diverged, "it diverged"); });
  const auto good = std::make_shared<Task>("block_3");
  for (const TaskPtr& task : {bad, worse, good}) pool.submit(task);
  for (const TaskPtr& task : {bad, worse, good}) pool.wait(*task);
  EXPECT_NE(error_of([&] { bad->collect(); }, ExitCode::unavailable).find("block_1: out of memory"), std::string::npos);
  EXPECT_EQ(error_of([&] { worse->collect(); }, ExitCode::diverged), "block_2: it diverged");
  EXPECT_NO_THROW(good->collect());
  EXPECT_TRUE(bad->idle() && good->idle());
  bad->work = {};
  pool.submit(bad);  // the next time it is well
  pool.wait(*bad);
  EXPECT_NO_THROW(bad->collect());
}

TEST(WorkerPool, ALateWorkerIsWaitedForOnceAndNamed) {
  const auto gate = std::make_shared<Gate>();
  const auto begin = std::chrono::steady_clock::now();
  {
    WorkerPool pool({.timeout = 0.2}, 2);
    const auto stuck = std::make_shared<Task>("/optimizer/w/factor_left", [gate] { gate->pass(); });
    pool.submit(stuck);
    const std::string message = error_of([&] { pool.wait(*stuck); }, ExitCode::unavailable);
    EXPECT_NE(message.find("/optimizer/w/factor_left"), std::string::npos) << message;
    EXPECT_NE(message.find("late or hangs"), std::string::npos) << message;
  }  // the pool ends without its worker
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  gate->open();
  std::this_thread::sleep_for(50ms);  // the thread that was left behind finds all it needs
}

TEST(WorkerPool, ADeadWorkerIsNoticed) {
  WorkerPool pool({.workers = 1, .timeout = 30, .before_task = [](const WorkerTask&) { pthread_exit(nullptr); }}, 2);
  const auto had = std::make_shared<Task>("in hand"), waits = std::make_shared<Task>("after it");
  pool.submit(had);
  pool.submit(waits);
  pool.wait(*had);
  EXPECT_NE(error_of([&] { had->collect(); }, ExitCode::unavailable).find("in hand: the worker that had it is gone"),
            std::string::npos);
  EXPECT_NE(error_of([&] { pool.wait(*waits); }, ExitCode::unavailable).find("after it: no refresh worker is left"),
            std::string::npos);
}

TEST(WorkerPool, CoresThatAreNotThereAreRefused) {
  EXPECT_NE(error_of([] { WorkerPool pool({.cores = {1023}}, 1); }, ExitCode::bad_deck).find("optimizer.refresh.cores"),
            std::string::npos);
}

// One of several senders ends: its tasks are dropped or waited for, those of others run on.
TEST(WorkerPool, WithdrawsTheTasksOfOneSender) {
  Gate gate;
  std::atomic<bool> running = false;
  WorkerPool pool({.workers = 1}, 1);
  pool.reserve(3);
  const auto in_hand = std::make_shared<Task>("in hand", [&] {
    running = true;
    gate.pass();
  });
  int dropped = 0, run = 0;
  const auto mine = std::make_shared<Task>("mine", [&] { ++dropped; });
  const auto others = std::make_shared<Task>("of others", [&] { ++run; });
  for (const TaskPtr& task : {in_hand, mine, others}) pool.submit(task);
  while (!running) std::this_thread::sleep_for(1ms);
  std::thread opens([&] {
    std::this_thread::sleep_for(20ms);
    gate.open();
  });
  pool.withdraw({in_hand.get(), mine.get()});
  EXPECT_TRUE(in_hand->done());
  EXPECT_TRUE(mine->idle());
  opens.join();
  pool.wait(*others);
  others->collect();
  EXPECT_EQ(run, 1);
  EXPECT_EQ(dropped, 0);
  pool.submit(mine);  // by another one, perhaps
  pool.wait(*mine);
  EXPECT_EQ(dropped, 1);
}

// Each side of the model is idle, or in flight with a value that its task must give, or fail with.
TEST(WorkerPool, TenThousandTasksFollowTheModel) {
  constexpr int sides = 40, rounds = 10000;
  std::mt19937 random(7);
  struct Side {
    TaskPtr task;
    int sent = 0, got = 0;
    bool in_flight = false, fails = false;
  };
  std::vector<Side> model(sides);
  WorkerPool pool({.workers = 3, .timeout = 60}, sides);
  for (int i = 0; i < sides; ++i) model[static_cast<std::size_t>(i)].task = std::make_shared<Task>(std::to_string(i));
  int submitted = 0;
  const auto take = [&](Side& side) {
    pool.wait(*side.task);
    side.in_flight = false;
    if (side.fails) {
      EXPECT_NE(error_of([&] { side.task->collect(); }, ExitCode::internal).find(side.task->name), std::string::npos);
      return;
    }
    side.task->collect();
    EXPECT_EQ(side.got, side.sent);
  };
  while (submitted < rounds) {
    Side& side = model[random() % sides];
    EXPECT_EQ(side.task->idle(), !side.in_flight);
    if (side.in_flight) {
      if (side.task->done() || random() % 4 == 0) take(side);
      continue;
    }
    side.fails = random() % 16 == 0;
    side.sent = ++submitted;
    side.task->deadline = submitted + static_cast<int>(random() % 8);
    side.task->work = [&side, delay = random() % 64] {
      if (delay < 4) std::this_thread::sleep_for(std::chrono::microseconds(50 * delay));
      if (side.fails) throw std::runtime_error("told to");
      side.got = side.sent;
    };
    side.in_flight = true;
    pool.submit(side.task);
  }
  for (Side& side : model)
    if (side.in_flight) take(side);
}

}  // namespace
}  // namespace sestina
