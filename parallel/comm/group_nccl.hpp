// The communicator that NCCL has of a group, with its stream and its memory: what device_communicator_nccl.cpp makes
// its exchanges of. Calls and their rules: NCCL user guide, "Point-to-point communication", "Fault tolerance".
#pragma once
#include <nccl.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/error.hpp"
#include "parallel/comm/communicator.hpp"
#include "parallel/comm/device_copies.hpp"
#include "parallel/comm/poll.hpp"
#include "parallel/library/nccl_start.hpp"

namespace sestina {

inline void check_nccl(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  fail(ExitCode::unavailable, "NCCL: {}: {} ({})", what, ncclGetErrorString(result), ncclGetLastError(nullptr));
}

inline void require_same_library(Communicator& group) {
  int version = 0;
  check_nccl(ncclGetVersion(&version), "asking for the version");
  std::vector<int> versions(static_cast<std::size_t>(group.size()));
  group.all_gather(&version, sizeof version, versions.data());
  require_nccl_versions(versions);
}

// Contiguous device memory that goes to, or comes from, a peer.
struct Transfer {
  int peer = 0;
  bool out = false;
  void* data = nullptr;   // null: the data lie in the staging memory
  std::size_t place = 0;  // their place there
  std::size_t bytes = 0;
};

// The communicator of a group, its stream, and staging memory, which its exchanges use in turn: one stream, one order.
class NcclGroup {
 public:
  explicit NcclGroup(Communicator& group) {
    require_same_library(group);
    struct {  // the first rank's, and whether it got one: else the others would wait for it
      ncclUniqueId id = {};
      ncclResult_t result = ncclSuccess;
    } name;
    if (group.rank() == 0) name.result = ncclGetUniqueId(&name.id);
    group.broadcast(&name, sizeof name, 0);
    check_nccl(name.result, "naming a group on its rank 0");
    group.barrier();  // the next call waits for all ranks without a limit
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    check_nccl(ncclCommInitRankConfig(&comm_, group.size(), name.id, group.rank(), &config), "connecting a group");
  }
  ~NcclGroup() {
    if (comm_ == nullptr) return;
    if (cudaStreamQuery(stream_) == cudaSuccess)
      ncclCommDestroy(comm_);
    else
      ncclCommAbort(comm_);  // something is under way that may never end
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  cudaStream_t stream() const { return stream_; }
  char* staging() const { return staging_.data(); }
  void reserve(std::size_t bytes) {
    if (bytes <= staging_.bytes()) return;
    stream_.wait();
    staging_.reserve(bytes);
  }

  void enqueue(const char* name, const std::vector<Transfer>& transfers, char* staging) {
    require_connection(name);
    if (transfers.empty()) return;
    enqueue_all(name, [&](ncclComm_t comm, cudaStream_t stream) {
      for (const Transfer& transfer : transfers) {
        void* data = transfer.data != nullptr ? transfer.data : staging + transfer.place;
        check_nccl(transfer.out ? ncclSend(data, transfer.bytes, ncclChar, transfer.peer, comm, stream)
                                : ncclRecv(data, transfer.bytes, ncclChar, transfer.peer, comm, stream),
                   name);
      }
    });
  }

  // Enqueues calls(communicator, stream) of all ranks as one operation.
  template <class Calls>
  void enqueue_all(const char* name, const Calls& calls) {
    require_connection(name);
    check_nccl(ncclGroupStart(), name);
    calls(comm_, stream_);
    check_nccl(ncclGroupEnd(), name);
  }

  // Returns whether what was enqueued before the event is complete. Error(unavailable) when it never will be.
  bool done(const CudaEvent& event, const char* name) {
    require_connection(name);
    if (event.done(name)) return true;
    ncclResult_t error = ncclSuccess;
    check_nccl(ncclCommGetAsyncError(comm_, &error), name);
    if (error == ncclSuccess || error == ncclInProgress) return false;
    abort();
    check_nccl(error, name);
    return false;
  }
  void wait(const CudaEvent& event, const char* name, const std::vector<Transfer>& transfers) {
    const auto who = [&] {
      std::vector<int> peers;
      for (const Transfer& transfer : transfers)
        if (std::find(peers.begin(), peers.end(), transfer.peer) == peers.end()) peers.push_back(transfer.peer);
      return peers.empty() ? std::string("the group") : fmt::format("rank {} of the group", fmt::join(peers, ", "));
    };
    try {
      poll_until(
          name, [&] { return done(event, name); }, who);
    } catch (...) {
      abort();
      throw;
    }
  }

  // These keep an order between this stream and another, by events that the host does not wait for.
  void follow(cudaStream_t other) {
    order_.record(other);
    order_.hold(stream_);
  }
  void hold_after_order(cudaStream_t other) const { order_.hold(other); }  // after the last followed work
  void hold(cudaStream_t other, const CudaEvent& until) {
    until.hold(other);
    held_ = true;
  }
  // Returns when what other streams wait for is complete.
  void complete(const char* name) {
    if (!std::exchange(held_, false)) return;
    completed_.record(stream_);
    wait(completed_, name, {});
  }

 private:
  void require_connection(const char* name) const {
    if (comm_ == nullptr) fail(ExitCode::unavailable, "\"{}\": NCCL's communicator was aborted before", name);
  }
  void abort() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
  }

  CudaStream stream_;
  Staging staging_{Staging::Place::device};
  ncclComm_t comm_ = nullptr;
  CudaEvent order_, completed_;
  bool held_ = false;  // another stream waits for this one
};

}  // namespace sestina
