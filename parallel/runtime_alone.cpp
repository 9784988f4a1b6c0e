// A build without MPI.
#include "parallel/runtime.hpp"

namespace sestina::ranks {

bool available() { return false; }
std::string library() { return "none"; }
bool reads_device_memory() { return false; }
std::unique_ptr<Communicator> start(double) { return make_lone_communicator(); }
void set_timeout(double) {}
void stop() {}
void abort(int) {}

}  // namespace sestina::ranks
