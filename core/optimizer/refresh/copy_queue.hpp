// A queue of copies from a device to host memory during the device's work, which goes on meanwhile. Twins:
// copy_queue_cuda.cpp (a stream and events), copy_queue_host.cpp (a host copies nothing to itself),
// copy_queue_kokkos.cpp (other devices, where Kokkos has no events: they wait).
#pragma once
#include <memory>

#include "kernels/blas/exec.hpp"

namespace sestina {

template <class Space>
class CopyQueue {
 public:
  explicit CopyQueue(const Space&);
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  // Puts all that is queued here from now on after the work that the space has so far.
  void follow(const Space&);
  // Puts all work that the space is given from now on after what is queued here.
  void lead(const Space&);
  // Returns the space to queue copies with.
  const Space& space() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sestina
