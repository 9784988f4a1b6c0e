// metrics.trace: the first updates of a run after its warm-up, as trace.json in the run directory. No Kokkos.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/deck/options.hpp"
#include "core/optimizer/refresh/worker_pool.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/trace.hpp"

namespace sestina {

class RunTrace {
 public:
  RunTrace(const Options&, const std::string& run_dir, Communicator& world);
  Trace* get() { return trace_.get(); }  // null: off

  // A row for each refresh worker of a stage (-1: the rank has but one); the pool must outlive the recording. Null:
  // none.
  void add_workers(int stage, WorkerPool*, int workers);
  void take_jobs();  // what they did since the last call

  // On all ranks together.
  void before_step();  // starts and ends the recording: updates 3 to metrics.trace + 2 since the start of the run
  void finish();       // the run ends: writes what there is

 private:
  struct Workers {
    WorkerPool* pool;
    int first_row;
  };

  Communicator& world_;
  std::string path_, label_;
  std::unique_ptr<Trace> trace_;
  std::vector<Workers> workers_;
  std::int64_t updates_ = 0, steps_ = 0;
};

}  // namespace sestina
