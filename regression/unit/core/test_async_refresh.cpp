// Refreshes on workers: visible exactly S updates after their snapshot (fixed), or when they are ready and never later
// (eager); the same bits however many workers there are, and however slow; nothing read that came after the snapshot;
// a job in flight is state.
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "core/optimizer/refresh/refresh_workers.hpp"
#include "regression/unit/core/matrix_rig.hpp"

namespace sestina::reference {
namespace {

struct AsyncKind {
  std::string name;
  KeyValues numbers = {};
  Words words = {};
};
// One for each way to read, order and publish.
const std::vector<AsyncKind> async_kinds = {{"soap"},
                                            {"soap", {}, {{"basis_refresh", "eigh"}}},
                                            {"soap", {}, {{"momentum_basis", "rotated"}}},
                                            {"soap", {}, {{"factor_update", "before"}, {"first_step", "use"}}},
                                            {"kl-shampoo"},
                                            {"kl-soap", {{"sort", 1}}},
                                            {"soap-muon"},
                                            {"basis-rotation"},
                                            {"basis-rotation", {}, {{"source", "1st"}}},
                                            {"shampoo"},
                                            {"shampoo", {{"max_dim", 5}, {"packed", 1}}},
                                            {"shampoo", {}, {{"root", "eigh"}}},
                                            {"shampoo", {}, {{"root", "newton"}}},
                                            {"galore"}};

template <class Space>
struct AsyncRig : MatrixRig<Space> {
  AsyncRig(const AsyncKind& kind, std::int64_t staleness, bool eager = false, std::int64_t every = 5)
      : MatrixRig<Space>(kind.name, 12, 8, kind.numbers, kind.words, every, "w", 0, staleness, eager) {}

  void start(const WorkerPool::Options& setting) {
    const RefreshNeeds needs = refresh_needs(this->options, 12, 8);
    workers = std::make_unique<RefreshWorkers>(setting, needs.scratch, needs.jobs, true);
    this->stream.refresh.workers = workers.get();
  }
  std::vector<Array> run(unsigned begin, unsigned end) {
    std::vector<Array> weights;
    for (unsigned t = begin; t < end; ++t) weights.push_back(this->step(gradient_at(12, 8, t)));
    return weights;
  }
  std::int64_t counter(const std::string& name, std::size_t side = 0) {
    return (&this->optimizer->state().counter(name))[side];
  }

  std::unique_ptr<RefreshWorkers> workers;  // ends before what it works for
};

void expect_same_runs(const std::vector<Array>& a, const std::vector<Array>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t t = 0; t < a.size(); ++t) EXPECT_EQ(a[t].values, b[t].values) << what << ", update " << t;
}

template <class Space>
class AsyncRefresh : public testing::Test {};
TYPED_TEST_SUITE(AsyncRefresh, StreamSpaces, SpaceNames);

// Of workers, of delays, of chance.
TYPED_TEST(AsyncRefresh, FixedResultsHaveTheSameBitsWhateverTheWorkersDo) {
  for (const AsyncKind& kind : async_kinds) {
    AsyncRig<TypeParam> one(kind, 3), several(kind, 3), at_once(kind, 0);
    one.start({.workers = 1});
    several.start({.workers = 3, .before_task = [](const WorkerTask& task) {
                     std::this_thread::sleep_for(std::chrono::microseconds(task.name.size() % 7 * 300));
                   }});
    const auto want = one.run(0, 24);
    expect_same_runs(several.run(0, 24), want, kind.name);
    const auto inline_run = at_once.run(0, 24);
    EXPECT_NE(inline_run.back().values, want.back().values) << kind.name;
    EXPECT_EQ(inline_run[3].values, want[3].values) << kind.name;  // nothing has been late yet
  }
}

// What is dispatched at t is in place after update t + S, and not before.
TYPED_TEST(AsyncRefresh, FixedResultsAreInPlaceExactlySUpdatesLater) {
  AsyncRig<TypeParam> rig({"basis-rotation"}, 3);  // its count of updates is that of the calls
  rig.start({.workers = 2});
  Array basis;
  for (unsigned t = 1; t <= 22; ++t) {
    rig.step(gradient_at(12, 8, t));
    const Array now = rig.field("basis_left");
    if (t > 1) EXPECT_EQ(now.values != basis.values, t > 5 && t % 5 == 3) << t;
    EXPECT_EQ(rig.counter("dispatched"), t >= 5 && t % 5 < 3 ? t - t % 5 : 0) << t;
    const RefreshAges ages = rig.optimizer->ages();
    EXPECT_EQ(ages.count, 2);
    EXPECT_EQ(ages.max, t < 8 ? t - 1 : 3 + (t - 3) % 5) << t;
    EXPECT_EQ(ages.sum, 2 * ages.max);
    basis = now;
  }
}

// S of a run that finds it at its start: the bits of a run whose options say it.
TYPED_TEST(AsyncRefresh, AStalenessThatIsFoundIsThatOfTheOptions) {
  AsyncRig<TypeParam> found({"soap"}, 4), said({"soap"}, 2);
  found.stream.refresh.policy.staleness = 2;
  for (auto* rig : {&found, &said}) rig->start({.workers = 2});
  expect_same_runs(found.run(0, 16), said.run(0, 16), "found");
}

// Nothing of update t + S is read: the factor may be anything by then.
TYPED_TEST(AsyncRefresh, OnlyTheSnapshotIsRead) {
  AsyncRig<TypeParam> plain({"soap"}, 2), spoiled({"soap"}, 2);
  for (auto* rig : {&plain, &spoiled}) rig->start({.workers = 1});
  for (auto* rig : {&plain, &spoiled}) rig->run(0, 6);  // five updates after the first call: dispatched
  ASSERT_EQ(spoiled.counter("dispatched"), 5);
  const auto factor = spoiled.optimizer->state().write("factor_left");
  Kokkos::deep_copy(factor.view(), 1e3f);
  for (auto* rig : {&plain, &spoiled}) rig->run(6, 8);
  EXPECT_EQ(spoiled.counter("computed_from"), 1 + 5);
  EXPECT_EQ(spoiled.field("basis_left").values, plain.field("basis_left").values);
}

TYPED_TEST(AsyncRefresh, AJobInFlightIsStateAndGoesOnInAnotherRun) {
  for (const AsyncKind& kind : async_kinds)
    for (const unsigned cut : {6u, 7u, 8u, 9u}) {  // around a dispatch and its end, whatever the kind counts
      AsyncRig<TypeParam> whole(kind, 3), first(kind, 3), second(kind, 3);
      for (auto* rig : {&whole, &first, &second}) rig->start({.workers = 2});
      const auto want = whole.run(0, 16);
      first.run(0, cut);
      hand_over<TypeParam>(first, second);
      const auto got = second.run(cut, 16);
      for (std::size_t t = 0; t < got.size(); ++t)
        EXPECT_EQ(got[t].values, want[cut + t].values) << kind.name << ", cut " << cut << ", update " << cut + t;
    }
}

// The first result of a side is there at once, though every worker sleeps.
TYPED_TEST(AsyncRefresh, TheFirstResultIsNeverLate) {
  AsyncRig<TypeParam> rig({"shampoo", {{"start_step", 2}}}, 3);
  rig.start({.workers = 1});
  rig.run(0, 2);
  EXPECT_EQ(rig.counter("refreshes"), 1);
  EXPECT_EQ(rig.counter("dispatched"), 0);
  rig.run(2, 6);
  EXPECT_EQ(rig.counter("dispatched"), 5);
  EXPECT_EQ(rig.counter("refreshes"), 1);
  rig.run(6, 8);
  EXPECT_EQ(rig.counter("refreshes"), 2);
}

// Workers that let nothing pass until they are told to.
struct HeldBack {
  std::mutex mutex;
  std::condition_variable changed;
  bool open = false;
  std::function<void(const WorkerTask&)> hook() {
    return [this](const WorkerTask&) {
      std::unique_lock lock(mutex);
      changed.wait_for(lock, std::chrono::seconds(20), [&] { return open; });
    };
  }
  void release() {
    const std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }
};

template <class Space>
class EagerRefresh : public testing::Test {};
using HostLanes = testing::Types<Serial, Host>;  // workers share the memory of these
TYPED_TEST_SUITE(EagerRefresh, HostLanes, SpaceNames);

TYPED_TEST(EagerRefresh, IsSeenWhenReadyAndWaitedForAfterSUpdates) {
  HeldBack gate;
  AsyncRig<TypeParam> rig({"basis-rotation"}, 3, true);
  rig.start({.workers = 2, .before_task = gate.hook()});
  rig.run(0, 7);  // dispatched at 5; 6 and 7 find nothing
  EXPECT_EQ(rig.counter("dispatched"), 5);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.release();
  });
  rig.run(7, 8);  // 8 = 5 + S: waits
  later.join();
  EXPECT_EQ(rig.counter("dispatched"), 0);
  EXPECT_EQ(rig.counter("computed_from"), 1 + 5);
  EXPECT_GE(rig.stream.refresh.seconds.waits, 0.01);
  rig.run(8, 10);  // dispatched at 10, and now at once
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  rig.run(10, 11);
  EXPECT_EQ(rig.counter("computed_from"), 1 + 10);
  EXPECT_EQ(rig.optimizer->ages().max, 1);
}

TYPED_TEST(EagerRefresh, NeverExceedsSWithAnyDelays) {
  for (const AsyncKind& kind : async_kinds) {
    std::mt19937 random(11);
    std::mutex mutex;
    AsyncRig<TypeParam> rig(kind, 3, true);
    rig.start({.workers = 2, .before_task = [&](const WorkerTask&) {
                 unsigned delay = 0;
                 {
                   const std::lock_guard lock(mutex);
                   delay = static_cast<unsigned>(random() % 3000);
                 }
                 std::this_thread::sleep_for(std::chrono::microseconds(delay));
               }});
    const std::size_t sides = refresh_needs(rig.options, 12, 8).jobs;
    for (unsigned t = 0; t < 40; ++t) {
      rig.step(gradient_at(12, 8, t));
      const std::int64_t updates = rig.counter("updates");
      for (std::size_t side = 0; side < sides; ++side) {
        const std::int64_t from = rig.counter("dispatched", side);
        if (from > 0) EXPECT_LT(updates - from, 3) << kind.name;
      }
      EXPECT_LE(rig.optimizer->ages().max, 5 + 3) << kind.name;
    }
  }
}

// A worker's failure to decompose is a value: the basis stays, the policy counts, and in the end the run stops.
TYPED_TEST(EagerRefresh, FailuresAreValues) {
  AsyncRig<TypeParam> rig({"soap"}, 2);
  rig.start({.workers = 1});
  rig.stream.refresh.policy.max_failures = 1;
  std::string dumped;
  rig.stream.refresh.policy.dump = [&](const std::string& name, const auto&, std::size_t d) {
    dumped = name + std::to_string(d);
  };
  rig.run(0, 5);
  const Array before = rig.field("basis_left");
  const auto factor = rig.optimizer->state().write("factor_left");
  Kokkos::deep_copy(factor.view(), std::nanf(""));
  rig.run(5, 7);
  EXPECT_EQ(rig.stream.refresh.failures, 0);  // sent, not seen
  rig.run(7, 8);
  EXPECT_EQ(rig.stream.refresh.failures, 1);
  EXPECT_EQ(rig.counter("failures_left"), 1);
  EXPECT_EQ(rig.counter("failures_right"), 0);
  EXPECT_EQ(dumped, "/optimizer/w/factor_left12");
  EXPECT_EQ(rig.field("basis_left").values, before.values);
  EXPECT_EQ(rig.counter("computed_from", 0), 1);
  EXPECT_EQ(rig.counter("computed_from", 1), 1 + 5);
  EXPECT_THROW(rig.run(8, 16), Error);
}

TYPED_TEST(EagerRefresh, ALateWorkerEndsTheRunWithTheNameOfTheBlock) {
  HeldBack gate;
  AsyncRig<TypeParam> rig({"shampoo", {{"max_dim", 8}}}, 2);
  rig.start({.workers = 1, .timeout = 0.2, .before_task = gate.hook()});
  rig.run(0, 11);
  try {
    rig.run(11, 12);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::unavailable);
    EXPECT_NE(std::string(error.what()).find("/optimizer/w/block_0_0.factor_left"), std::string::npos) << error.what();
  }
  gate.release();
  rig.workers.reset();
}

}  // namespace
}  // namespace sestina::reference
