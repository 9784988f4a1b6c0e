// Streams and events of CUDA, for sources of CUDA builds alone. No Kokkos.
#pragma once
#include <cuda_runtime_api.h>

#include "kernels/base/error.hpp"

namespace sestina {

// Throws Error(unavailable) with CUDA's own words unless the call succeeded.
inline void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(ExitCode::unavailable, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

// A stream that does not wait for the default stream.
class CudaStream {
 public:
  CudaStream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { check_cuda(cudaStreamSynchronize(stream_), "waiting for copies"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  CudaEvent() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event"); }
  ~CudaEvent() { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void record(cudaStream_t stream) { check_cuda(cudaEventRecord(event_, stream), "recording an event"); }
  // Makes the stream wait, with all work that it gets from now on, until the work before the last record is complete.
  void hold(cudaStream_t stream) const { check_cuda(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event"); }
  bool done(const char* name) const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) check_cuda(state, name);
    return state == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace sestina
