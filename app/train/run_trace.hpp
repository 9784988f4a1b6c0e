// metrics.trace: the first updates of a run after its warm-up, as trace.json in the run directory. No Kokkos.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/memory/pager.hpp"
#include "core/optimizer/refresh/worker_pool.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/trace.hpp"

namespace sestina {

class RunTrace {
 public:
  RunTrace(const Options&, const std::string& run_dir, Communicator& world);
  Trace* get() { return trace_.get(); }  // null: off

  // Adds a row for each refresh worker of this process; the pool, which its stages share, must outlive the recording. A
  // null pool has no effect.
  void set_workers(WorkerPool*, int workers);
  void take_jobs();  // takes what the workers did since the last call
  // Takes what happened to blocks of state since the last call, which is told with this update, and returns the counts.
  Pager::Counts take_blocks(Pager&, std::int64_t update);

  // All ranks call these together.
  void before_step();  // starts and ends the recording: updates 3 to metrics.trace + 2 of this start
  void finish();       // writes what there is when the run ends

 private:
  Communicator& world_;
  std::string path_, label_;
  std::unique_ptr<Trace> trace_;
  WorkerPool* workers_ = nullptr;
  std::vector<Pager::Event> blocks_;  // those of the last call
  int first_row_ = 0;                 // the first row of the workers
  std::int64_t updates_ = 0, steps_ = 0;
};

}  // namespace sestina
