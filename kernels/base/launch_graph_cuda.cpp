#include "kernels/base/cuda_queue.hpp"
#include "kernels/base/launch_graph.hpp"

namespace sestina {
namespace {

// Makes a graph of what was recorded. One of the same kernels that there is already takes their new arguments, which is
// much less work than to make another.
cudaError_t take_over(cudaGraph_t recorded, cudaGraphExec_t& graph) {
  if (graph != nullptr) {
    cudaGraphExecUpdateResultInfo found = {};
    if (cudaGraphExecUpdate(graph, recorded, &found) == cudaSuccess) return cudaSuccess;
    cudaGetLastError();  // it was one of other kernels: no failure
    cudaGraphExecDestroy(graph);
    graph = nullptr;
  }
  return cudaGraphInstantiate(&graph, recorded, 0);
}

}  // namespace

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
  auto graph = static_cast<cudaGraphExec_t>(graph_);
  const cudaError_t made = take_over(recorded, graph);
  cudaGraphDestroy(recorded);
  graph_ = graph;
  check_cuda(made, "making a graph of a pass");
}

void LaunchGraph::start() const {
  check_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), static_cast<cudaStream_t>(queue_)),
             "starting the graph of a pass");
}

}  // namespace sestina
