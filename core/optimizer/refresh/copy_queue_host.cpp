#include "core/optimizer/refresh/copy_queue.hpp"

namespace sestina {

template <class Space>
struct CopyQueue<Space>::State {
  Space exec;
};

template <class Space>
CopyQueue<Space>::CopyQueue(const Space& exec) : state_(std::make_unique<State>(State{exec})) {}
template <class Space>
CopyQueue<Space>::~CopyQueue() = default;
template <class Space>
void CopyQueue<Space>::follow(const Space&) {}
template <class Space>
void CopyQueue<Space>::lead(const Space&) {}
template <class Space>
const Space& CopyQueue<Space>::space() const {
  return state_->exec;
}

template class CopyQueue<Serial>;
template class CopyQueue<Host>;

}  // namespace sestina
