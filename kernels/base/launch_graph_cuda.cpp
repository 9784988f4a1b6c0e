#include "kernels/base/cuda_queue.hpp"
#include "kernels/base/launch_graph.hpp"

namespace sestina {

LaunchGraph::LaunchGraph(void* queue) : queue_(queue) {}

LaunchGraph::~LaunchGraph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
}

void LaunchGraph::record(const std::function<void()>& work) {
  const auto stream = static_cast<cudaStream_t>(queue_);
  // Relaxed: Kokkos asks for 0 bytes of scratch before it launches a team, which the stricter modes refuse.
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "recording a pass");
  cudaGraph_t recorded = nullptr;
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream, &recorded);  // what comes next shall not be recorded
    if (recorded != nullptr) cudaGraphDestroy(recorded);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream, &recorded), "ending the record of a pass");
  cudaGraphExec_t graph = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&graph, recorded, 0);
  cudaGraphDestroy(recorded);
  check_cuda(made, "making a graph of a pass");
  graph_ = graph;
}

void LaunchGraph::start() const {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), static_cast<cudaStream_t>(queue_)),
             "starting the graph of a pass");
}

}  // namespace sestina
