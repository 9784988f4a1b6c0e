// A build without MPI.
#include "parallel/comm/runtime.hpp"

namespace sestina::ranks {

bool available() { return false; }
std::string library() { return "none"; }
bool reads_device_memory() { return false; }
bool running() { return false; }
std::unique_ptr<Communicator> start(const RankSource&, double, const std::function<int()>&) {
  return make_lone_communicator();
}
void stop(int) {}
void abort(int) {}

}  // namespace sestina::ranks
