// Graphs: what a stream gets between the begin and the end of its capture is counted as recorded, and not as done; each
// start of the graph is one launch. What a capture does not allow is a problem: waits of the host, memory, copies from
// and to the host, whose contents may be others when the graph starts, and work in other streams.
#include <cuda_runtime_api.h>

#include "device.hpp"

using namespace null_device;

namespace {

struct Recorded {
  Stream* stream = nullptr;
  std::size_t kernels = 0;
};

}  // namespace

namespace null_device {

void refuse_while_recording(const std::string& what) {
  if (dev().recording != nullptr) problem(what + " while a stream is recorded");
}

}  // namespace null_device

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  Lock lock(dev().mutex);
  count("runtime", "cudaStreamBeginCapture");
  if (s == nullptr) problem("cudaStreamBeginCapture of the default stream");
  if (dev().recording != nullptr) problem("cudaStreamBeginCapture of a second stream");
  dev().recording = &stream_of(s);
  dev().recorded_kernels = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* graph) {
  Lock lock(dev().mutex);
  count("runtime", "cudaStreamEndCapture");
  *graph = nullptr;
  if (dev().recording != &stream_of(s)) {
    problem("cudaStreamEndCapture of a stream that is not recorded");
    return result(cudaErrorIllegalState);
  }
  dev().recording = nullptr;
  *graph = reinterpret_cast<cudaGraph_t>(new Recorded{&stream_of(s), dev().recorded_kernels});
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long) {
  Lock lock(dev().mutex);
  count("runtime", "cudaGraphInstantiate");
  *made = reinterpret_cast<cudaGraphExec_t>(new Recorded(*reinterpret_cast<Recorded*>(graph)));
  return cudaSuccess;
}
// Takes the arguments of a record of the same kernels: as many, here.
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t made, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* found) {
  Lock lock(dev().mutex);
  count("runtime", "cudaGraphExecUpdate");
  refuse_while_recording("cudaGraphExecUpdate");
  Recorded& known = *reinterpret_cast<Recorded*>(made);
  const Recorded& recorded = *reinterpret_cast<Recorded*>(graph);
  const bool same = known.stream == recorded.stream && known.kernels == recorded.kernels;
  found->result = same ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
  return same ? cudaSuccess : result(cudaErrorGraphExecUpdateFailure);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s) {
  Lock lock(dev().mutex);
  refuse_while_recording("cudaGraphLaunch");
  const Recorded& recorded = *reinterpret_cast<Recorded*>(graph);
  if (recorded.kernels == 0) problem("cudaGraphLaunch of a graph without kernels");
  if (recorded.stream != &stream_of(s)) problem("cudaGraphLaunch in another stream than it was recorded in");
  stream_of(s).kernels += recorded.kernels;
  count("launch", "graph");
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete reinterpret_cast<Recorded*>(graph), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return delete reinterpret_cast<Recorded*>(graph), cudaSuccess;
}
}
