// The port through which an optimizer requests refreshes and takes their results: it keeps the order of its step and
// calls at() at its own refresh point of every update. Inline, a refresh that is due runs there and then.
// Asynchronously it copies what it would read, and its result is put in place at the same point S updates later
// (S = optimizer.refresh.staleness; fixed), or at the first such point at which it is ready, S updates later at the
// latest (eager). The first result of a side is always inline.
//
// What is in flight is state: the snapshot, and the update that it was taken in. A run that resumes computes it again.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/optimizer/refresh/refresh_workers.hpp"

namespace sestina {

// now: by a worker, where there are some; here: by the stream, since the side has no result yet, or since no worker is
// to compute it.
enum class Due { no, now, here };

// One side of a matrix or of a block.
struct RefreshSide {
  std::string name;                  // for messages: "/optimizer/<HF name>/factor_left"
  std::string snapshot = {};         // the field of a snapshot (add_jobs of core/optimizer/base/sides.hpp)
  std::int64_t* failures = nullptr;  // in a row; null: not counted
  std::int64_t* results = nullptr;   // so far; null: not counted
  RefreshTask::Room room = {};       // room for its results
  std::size_t d = 0;                 // of a factor (d, d), whose snapshot is packed; 0: the snapshot is as it is
};

template <class Space>
class RefreshPort {
 public:
  // Takes the sides in the order of the fields dispatched and computed_from of the state, which must outlive this.
  RefreshPort(MatrixState<Space>&, const MatrixOptions&, const std::vector<RefreshSide>&);

  // Returns whether something may have to be done at a refresh point although nothing falls due.
  bool in_flight() const;

  // Runs the refresh point of update t for one side. request_at(t) returns what inline refresh would run at update t,
  // its outputs being those in use; the job's factor is read only where `due`. done: new ones are in place, or, queued
  // on a device, will be if they are good.
  template <class RequestAt>
  Refreshed at(Stream<Space>& stream, std::size_t side, std::int64_t t, Due due, const RequestAt& request_at) {
    updates_ = t;
    Refreshed seen = Refreshed::not_needed;
    if (const std::int64_t from = *sides_[side].dispatched; from > 0) seen = resolve(stream, side, t, request_at(from));
    if (due == Due::no) return seen;
    if (due == Due::here || staleness_ == 0) return run(stream, side, t, request_at(t));
    sent_ = t;
    send(stream, side, t, request_at(t));
    return seen;
  }
  // Notes an update without a refresh point, or without one to look at.
  void pass(std::int64_t t) { updates_ = t; }
  // Notes that all sides have results of update t that came by another way: first bases.
  void renew(std::int64_t t);

  // Notes that the state was set to zero, after release(): what was in flight is lost.
  void forget();

  RefreshAges ages() const;

  // Returns the update of the newest job since release(), or of one in flight, 0: none; it does not depend on what is
  // ready. Replicas of a matrix on several ranks see results at different updates (eager), and are made equal now and
  // then.
  std::int64_t sent() const;
  // Returns how new the results in use are: the replicas with the largest number have the newest.
  std::int64_t newness() const;
  // Prepares for the state to be written from outside: workers have let go of it when this returns. What is in flight
  // then is computed again, as in a run that was resumed.
  void release(Stream<Space>&);
  // Adds the tasks that may be with workers: whoever ends withdraws them (WorkerPool).
  void add_tasks(std::vector<const WorkerTask*>&) const;
  bool asynchronous() const { return staleness_ > 0 && !sides_.empty(); }

 private:
  // Host memory that a worker reads and writes: for a device a copy of the snapshot. The basis in use is in the room of
  // the task where the worker made it, and is copied there otherwise.
  struct OnHost {
    std::shared_ptr<const void> state;  // owner of the memory of results, and on a host of all that is read
    Kokkos::View<std::int32_t*, HostSide<Space>> order;
    Kokkos::View<float*, HostSide<Space>> factor;
    HostValues<Space> arrived;  // for a device (1): set after the copies
  };
  struct SideState {
    RefreshSide side;
    std::int64_t* dispatched = nullptr;     // update of the snapshot in flight, 0: none
    std::int64_t* computed_from = nullptr;  // 1 + update of the snapshot that the result in use comes from, 0: none
    StateArray<Space> snapshot = {};
    SnapshotForm form = {};
    std::int64_t room_has = 0;  // device: computed_from of the basis that the room of the task holds, 0: none
    std::shared_ptr<RefreshTask> task = {};
    std::shared_ptr<OnHost> on_host = {};
    SideCounts counts() const { return {side.failures, computed_from, side.results}; }
  };

  // Returns S, which a run may have found at its start.
  std::int64_t staleness(const Stream<Space>& stream) const {
    const std::int64_t found = stream.refresh.policy.staleness;
    return found > 0 ? found : staleness_;
  }
  void make_task(MatrixState<Space>&, SideState&);
  Refreshed run(Stream<Space>&, std::size_t side, std::int64_t t, const RefreshRequest<Space>&);
  void send(Stream<Space>&, std::size_t side, std::int64_t t, const RefreshRequest<Space>&);
  // Takes the result in flight, if it is to be seen at update t.
  Refreshed resolve(Stream<Space>&, std::size_t side, std::int64_t t, RefreshRequest<Space>);
  void submit(Stream<Space>&, SideState&, const RefreshRequest<Space>&);
  void copy_to_host(Stream<Space>&, SideState&, const RefreshRequest<Space>&);
  void publish(Stream<Space>&, const RefreshTask& from, const RefreshRequest<Space>& to);
  void wait(Stream<Space>&, SideState&);  // until the worker has ended the job
  Refreshed take(Stream<Space>&, SideState&, RefreshRequest<Space>);
  // Holds the factor of a snapshot, in memory of its own where that is packed: for what is rare.
  struct WholeFactor;

  std::int64_t staleness_ = 0;
  bool eager_ = false;
  std::int64_t updates_ = 0, sent_ = 0;
  std::vector<SideState> sides_;
  std::vector<std::int64_t> own_counters_;  // inline: they are no state
};

}  // namespace sestina
