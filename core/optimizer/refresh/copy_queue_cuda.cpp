#include <cuda_runtime_api.h>

#include "core/optimizer/refresh/copy_queue.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

void check_copies(cudaError_t error, const char* what) {
  SESTINA_REQUIRE(error == cudaSuccess, "{}: {}", what, cudaGetErrorString(error));
}

// A stream that does not wait for the default stream.
struct CopyStream {
  CopyStream() { check_copies(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"); }
  ~CopyStream() { cudaStreamDestroy(stream); }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;
  cudaStream_t stream = nullptr;
};

struct CopyEvent {
  CopyEvent() { check_copies(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"); }
  ~CopyEvent() { cudaEventDestroy(event); }
  CopyEvent(const CopyEvent&) = delete;
  CopyEvent& operator=(const CopyEvent&) = delete;
  // Makes `after` wait for what `before` has so far.
  void order(cudaStream_t before, cudaStream_t after) {
    check_copies(cudaEventRecord(event, before), "recording an event");
    check_copies(cudaStreamWaitEvent(after, event, 0), "waiting for an event");
  }
  cudaEvent_t event = nullptr;
};

}  // namespace

template <>
struct CopyQueue<Kokkos::Cuda>::State {
  CopyStream own;
  CopyEvent here, there;
  Kokkos::Cuda exec{own.stream};
};

template <>
CopyQueue<Kokkos::Cuda>::CopyQueue(const Kokkos::Cuda&) : state_(std::make_unique<State>()) {}
template <>
CopyQueue<Kokkos::Cuda>::~CopyQueue() {
  state_->exec.fence("copy_queue");
}
template <>
void CopyQueue<Kokkos::Cuda>::follow(const Kokkos::Cuda& exec) {
  state_->here.order(exec.cuda_stream(), state_->own.stream);
}
template <>
void CopyQueue<Kokkos::Cuda>::lead(const Kokkos::Cuda& exec) {
  state_->there.order(state_->own.stream, exec.cuda_stream());
}
template <>
const Kokkos::Cuda& CopyQueue<Kokkos::Cuda>::space() const {
  return state_->exec;
}

}  // namespace sestina
