// Copies from a device to host memory in a queue during its work, which goes on meanwhile. Twins: copy_queue_cuda.cpp
// (a stream and events), copy_queue_host.cpp (a host copies nothing to itself), copy_queue_kokkos.cpp (other devices,
// where Kokkos has no events: they wait).
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

  // What is queued here from now on comes after all that the space has been given.
  void follow(const Space&);
  // What the space is given from now on comes after all that is queued here.
  void lead(const Space&);
  // To queue copies with.
  const Space& space() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sestina
