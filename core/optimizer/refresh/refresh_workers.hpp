// Refreshes on threads in addition to those that compute: a pool of them, each with its own scratch and decompositions
// on one core. The stages of a process share one: the stage that a job comes from changes none of its bits. The inputs
// of a job (its snapshot, and the basis it starts from) stay as they are until its result is taken.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "core/optimizer/refresh/refresh.hpp"
#include "core/optimizer/refresh/snapshot.hpp"
#include "core/optimizer/refresh/worker_pool.hpp"

namespace sestina {

using WorkerStreams = std::vector<Stream<Serial>>;

// Takes what a worker takes for a job whose snapshot is packed: the factor (d, d) first.
void declare_packed_job(Workspace<Serial>&, RefreshMethod, std::size_t d, bool sorted = true);

// A job of one side with room for its result.
class RefreshTask final : public WorkerTask {
 public:
  // Elements of what a job gives; 0: nothing of that sort.
  struct Room {
    std::size_t basis = 0, order = 0, root = 0;
  };
  // Memory of a result, as large as the room: (1, elements).
  struct Memory {
    StateArray<Serial> basis = {}, root = {};
    std::int32_t* order = nullptr;
  };
  // kept: the owner of that memory, and that of the memory that snapshots lie in.
  RefreshTask(const Room&, const Memory&, std::shared_ptr<const void> kept);
  // Sets the test whether a job's inputs are there, which they will be before long. Empty: always.
  void set_arrival(std::function<bool()> is_here) { is_here_ = std::move(is_here); }

  // Makes the job that was asked for with the task's own outputs, and its inputs at these places in host memory. The
  // basis may be the room for the new one.
  template <class Space>
  void prepare(const RefreshRequest<Space>& asked, const StateArray<Serial>& factor, const SnapshotForm& form,
               const StateArray<Serial>& basis) {
    const RefreshJob<Space>& job = asked.job;
    factor_ = factor;
    form_ = form;
    basis_ = basis;
    new_basis_ = memory_.basis.template as<Serial>(basis.extent(0), basis.extent(1));
    new_root_ = memory_.root.template as<Serial>(asked.root.extent(0), asked.root.extent(1));
    job_ = RefreshJob<Serial>{.method = job.method,
                              .name = job.name,
                              .factor = factor.read(),
                              .basis = basis.read(),
                              .order = Vector<std::int32_t, Serial>(memory_.order, job.order.extent(0)),
                              .shift = job.shift,
                              .exponent = job.exponent,
                              .scale = job.scale,
                              .eps = job.eps,
                              .perturb_before = job.perturb_before,
                              .tolerance = job.tolerance,
                              .max_iterations = job.max_iterations,
                              .right = job.right,
                              .form = job.form};
    require_room();
  }
  void run(std::size_t worker) override;

  // Return what the last job gave, good when the outcome is done.
  const StateArray<Serial>& new_basis() const { return new_basis_; }
  // Returns the room for a basis, as (d, d).
  StateArray<Serial> room_for_basis(std::size_t d) const { return memory_.basis.template as<Serial>(d, d); }
  const StateArray<Serial>& new_root() const { return new_root_; }
  Vector<const std::int32_t, Serial> order() const { return job_.order; }
  Refreshed outcome() const { return outcome_; }
  double seconds() const { return seconds_; }  // time that its worker had it
  void set_streams(const std::shared_ptr<WorkerStreams>& streams) { streams_ = streams; }

 private:
  void require_room() const;

  RefreshJob<Serial> job_;
  SnapshotForm form_;
  StateArray<Serial> factor_, basis_, new_basis_, new_root_;
  Refreshed outcome_ = Refreshed::kept;
  double seconds_ = 0;
  Room room_;
  Memory memory_;
  std::shared_ptr<const void> kept_;
  std::function<bool()> is_here_;
  std::shared_ptr<WorkerStreams> streams_;
};

class RefreshWorkers {
 public:
  // deterministic: so are the products. No thread starts before somebody is to send jobs.
  RefreshWorkers(const WorkerPool::Options&, bool deterministic);
  // Makes workers for one sender.
  RefreshWorkers(const WorkerPool::Options&, std::size_t scratch, std::size_t most, bool deterministic);

  // Adds a sender of jobs, before its first one. scratch: bytes that the largest job takes. most: jobs in flight at one
  // time.
  void expect(std::size_t scratch, std::size_t most);

  void submit(const std::shared_ptr<RefreshTask>&);
  void wait(const RefreshTask& task) { pool_->wait(task); }
  void withdraw(const std::vector<const WorkerTask*>& tasks) { pool_->withdraw(tasks); }
  WorkerPool* pool() { return pool_.get(); }  // null: nobody sends jobs

 private:
  WorkerPool::Options options_;
  bool deterministic_;
  std::size_t scratch_ = 0;
  std::shared_ptr<WorkerStreams> streams_;
  std::unique_ptr<WorkerPool> pool_;
};

}  // namespace sestina
