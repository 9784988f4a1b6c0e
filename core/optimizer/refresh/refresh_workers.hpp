// Refreshes on threads beside those that compute: a pool of them, each with its own scratch and decompositions on one
// core. What a job reads (its snapshot, and the basis it starts from) stays as it is until its result is taken.
#pragma once
#include <memory>
#include <vector>

#include "core/optimizer/refresh/refresh.hpp"
#include "core/optimizer/refresh/worker_pool.hpp"

namespace sestina {

using WorkerLanes = std::vector<Lane<Serial>>;

// A job of one side with room for its result.
class RefreshTask final : public WorkerTask {
 public:
  // Elements of what a job gives; 0: nothing of that sort.
  struct Room {
    std::size_t basis = 0, order = 0, root = 0;
  };
  // basis, root: memory for results. kept: what holds it, and the memory that snapshots lie in.
  RefreshTask(const Room&, float* basis, float* root, std::shared_ptr<const void> kept);

  // The same job with the task's own outputs. Any host space: they share their memory.
  template <class Space>
  void prepare(const RefreshJob<Space>& job) {
    const RefreshJob<Serial> own{.method = job.method,
                                 .name = job.name,
                                 .factor = job.factor,
                                 .basis = job.basis,
                                 .order = job.order,
                                 .root = job.root,
                                 .exponent = job.exponent,
                                 .scale = job.scale,
                                 .eps = job.eps,
                                 .perturb_before = job.perturb_before,
                                 .tolerance = job.tolerance,
                                 .max_iterations = job.max_iterations,
                                 .right = job.right};
    prepare_own(own);
  }
  void run(std::size_t worker) override;

  const RefreshJob<Serial>& job() const { return job_; }  // its outputs are good when the outcome is done
  Refreshed outcome() const { return outcome_; }
  void set_pager(const std::shared_ptr<Pager>& pager) { pager_ = pager; }  // of all of that memory, or null
  void set_lanes(const std::shared_ptr<WorkerLanes>& lanes) { lanes_ = lanes; }

 private:
  void prepare_own(const RefreshJob<Serial>&);

  RefreshJob<Serial> job_;
  Refreshed outcome_ = Refreshed::kept;
  Room room_;
  float *basis_, *root_;
  std::shared_ptr<const void> kept_;
  std::shared_ptr<Pager> pager_;
  Kokkos::View<std::int32_t*, Kokkos::HostSpace> order_;
  std::shared_ptr<WorkerLanes> lanes_;
};

class RefreshWorkers {
 public:
  // scratch: bytes that the largest job takes. most: jobs in flight at one time. deterministic: of products.
  RefreshWorkers(const WorkerPool::Setting&, std::size_t scratch, std::size_t most, bool deterministic);

  void submit(const std::shared_ptr<RefreshTask>&);
  void wait(const RefreshTask& task) { pool_.wait(task); }

 private:
  std::shared_ptr<WorkerLanes> lanes_;
  WorkerPool pool_;
};

}  // namespace sestina
