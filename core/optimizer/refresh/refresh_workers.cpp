#include "core/optimizer/refresh/refresh_workers.hpp"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "kernels/base/threads.hpp"

namespace sestina {
namespace {

std::shared_ptr<WorkerStreams> make_streams(int workers, std::size_t scratch, bool deterministic) {
  auto streams = std::make_shared<WorkerStreams>();
  for (int i = 0; i < workers; ++i) {
    const Serial exec{Kokkos::NewInstance{}};
    streams->push_back(
        {.exec = exec, .gemm = Gemm<Serial>(exec, deterministic), .workspace = Workspace<Serial>(scratch)});
  }
  return streams;
}

// The factor that a snapshot is unpacked to.
struct UnpackedSnapshot {
  UnpackedSnapshot(Workspace<Serial>& workspace, std::size_t d) : factor(workspace.take<float>(d, d)) {}
  Matrix<float, Serial> factor;
};

}  // namespace

void declare_packed_job(Workspace<Serial>& workspace, RefreshMethod method, std::size_t d, bool sorted) {
  const auto frame = workspace.frame();
  const UnpackedSnapshot snapshot(workspace, d);
  declare_refresh<Serial>(workspace, method, d, sorted);
}

RefreshTask::RefreshTask(const Room& room, const Memory& memory, std::shared_ptr<const void> kept)
    : room_(room), memory_(memory), kept_(std::move(kept)) {}

void RefreshTask::require_room() const {
  SESTINA_REQUIRE(
      new_basis_.size() <= room_.basis && job_.order.size() <= room_.order && new_root_.size() <= room_.root,
      "{}: room for {}, {} and {}", job_.name, room_.basis, room_.order, room_.root);
}

void RefreshTask::run(std::size_t worker) {
  seconds_ = 0;
  const SecondsSpent spent(seconds_);
  constexpr std::chrono::microseconds pause{20};
  while (is_here_ && !is_here_()) std::this_thread::sleep_for(pause);
  if (omp_get_max_threads() != 1) omp_set_num_threads(1);  // for this thread, which has one core
  const Pin factor = factor_.pin(), old = basis_.pin();
  const auto basis = new_basis_.write(Pager::Need::room), root = new_root_.write(Pager::Need::room);
  job_.new_basis = basis.view();
  job_.root = root.view();
  Stream<Serial>& stream = (*streams_)[worker];
  const auto frame = stream.workspace.frame();
  if (form_.d > 0) {
    const Matrix<float, Serial> whole = UnpackedSnapshot(stream.workspace, form_.d).factor;
    unpack_snapshot<Serial>(stream.exec, form_, factor_.read(), whole);
    job_.factor = whole;
  }
  outcome_ = compute_refresh(stream, job_);
}

RefreshWorkers::RefreshWorkers(const WorkerPool::Options& options, std::size_t scratch, std::size_t most,
                               bool deterministic)
    : RefreshWorkers(options, deterministic) {
  expect(scratch, most);
}

RefreshWorkers::RefreshWorkers(const WorkerPool::Options& options, bool deterministic)
    : options_(options), deterministic_(deterministic) {}

// Adds a sender. A job that is under way keeps the streams that it was sent with.
void RefreshWorkers::expect(std::size_t scratch, std::size_t most) {
  if (!streams_ || scratch > scratch_) {
    scratch_ = std::max(scratch_, scratch);
    streams_.reset();  // scratch of the old and the new ones does not lie in memory at the same time
    streams_ = make_streams(options_.workers, scratch_, deterministic_);
  }
  if (pool_)
    pool_->reserve(most);
  else
    pool_ = std::make_unique<WorkerPool>(options_, most);
}

void RefreshWorkers::submit(const std::shared_ptr<RefreshTask>& task) {
  task->set_streams(streams_);
  pool_->submit(task);
}

}  // namespace sestina
