#include "core/optimizer/refresh/copy_queue.hpp"

namespace sestina {

template <>
struct CopyQueue<Device>::State {
  Device exec;
};

template <>
CopyQueue<Device>::CopyQueue(const Device& exec) : state_(std::make_unique<State>(State{exec})) {}
template <>
CopyQueue<Device>::~CopyQueue() = default;
template <>
void CopyQueue<Device>::follow(const Device& exec) {
  exec.fence("copy_queue");
}
template <>
void CopyQueue<Device>::lead(const Device&) {
  state_->exec.fence("copy_queue");
}
template <>
const Device& CopyQueue<Device>::space() const {
  return state_->exec;
}

}  // namespace sestina
