// Work of a device's queue that is recorded once and then started by one call. No Kokkos.
#pragma once
#include <functional>

namespace sestina {

// A CUDA graph (CUDA programming guide, "CUDA Graphs", "Stream Capture"). In builds without CUDA there is none: it
// cannot be made.
class LaunchGraph {
 public:
  explicit LaunchGraph(void* queue);  // the CUDA stream
  ~LaunchGraph();
  LaunchGraph(const LaunchGraph&) = delete;
  LaunchGraph& operator=(const LaunchGraph&) = delete;

  // Records what `work` sends to the queue, with the addresses and numbers that it sends; the device does nothing yet.
  // It must neither wait for the device nor allocate. Error(unavailable) with the library's words where something of it
  // cannot be recorded. What is recorded again takes the place of what was: starts that wait in the queue keep theirs.
  void record(const std::function<void()>& work);
  // Lets the device do what was recorded, after what the queue has so far.
  void start() const;

 private:
  [[maybe_unused]] void* queue_;
  [[maybe_unused]] void* graph_ = nullptr;  // cudaGraphExec_t; a build without CUDA uses neither
};

}  // namespace sestina
