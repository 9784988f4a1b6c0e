// Streams, events and staging memory of CUDA, and copies between the blocks of a message and contiguous memory. For
// CUDA builds alone. No Kokkos.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "parallel/comm/communicator.hpp"

namespace sestina {

// Error(unavailable) with CUDA's own words.
void check_cuda(cudaError_t, const char* what);

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
  // What the stream gets from now on waits until all before the last record is complete.
  void hold(cudaStream_t stream) const { check_cuda(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event"); }
  bool done(const char* name) const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state != cudaErrorNotReady) check_cuda(state, name);
    return state == cudaSuccess;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Contiguous memory that only grows; what it held is lost then.
class Staging {
 public:
  enum class Place { device, pinned_host };
  explicit Staging(Place place) : place_(place) {}
  ~Staging() { release(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void reserve(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }
  char* data() const { return data_; }

 private:
  void release();
  Place place_;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

bool is_device_memory(const void*);
bool any_in_device_memory(const std::vector<Block>&);
bool all_in_device_memory(const std::vector<Block>&);

bool is_flat(const Block&);  // one stretch of bytes
std::vector<Block> without_empty(std::vector<Block>);
bool same_blocks(const std::vector<Block>&, const std::vector<Block>&);

// To and from contiguous memory, in the order of the bytes; either side may be the host's.
void pack(const std::vector<Block>& from, char* to, cudaStream_t);
void unpack(const char* from, const std::vector<Block>& to, cudaStream_t);

}  // namespace sestina
