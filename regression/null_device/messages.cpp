// NCCL: messages are checked and counted, and their order is told (NULL_DEVICE_MESSAGES), so that order.py finds
// whether the ranks of a run can wait for each other in a circle.
//
//   group ID RANK SIZE             a communicator: this process is RANK of its SIZE ranks
//   messages ID >PEER:BYTES <PEER:BYTES...   an operation of it: sent to (>) and received from (<) ranks of it
#include <nccl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

using namespace null_device;

extern "C" int null_device_call(const char* name);

struct ncclComm {
  std::string id;
};

namespace {

struct Operation {  // between ncclGroupStart and ncclGroupEnd
  int depth = 0;
  std::string group, messages;
};
thread_local Operation operation;

void tell(const std::string& line) {
  static std::FILE* const out = [] {
    const std::string path = path_of_rank("NULL_DEVICE_MESSAGES");
    return path.empty() ? nullptr : std::fopen(path.c_str(), "w");
  }();
  if (out == nullptr) return;
  std::fprintf(out, "%s\n", line.c_str());
  std::fflush(out);  // programs that leave by _exit
}

void end_operation() {
  if (!operation.messages.empty()) tell("messages " + operation.group + operation.messages);
  operation.group.clear();
  operation.messages.clear();
}

ncclResult_t message(const char* call, char direction, const void* at, std::size_t n, ncclDataType_t type, int peer,
                     ncclComm_t comm, cudaStream_t stream) {
  Lock lock(dev().mutex);
  require_order(stream, call);
  const std::size_t element = type <= ncclUint8                             ? 1
                              : type == ncclFloat16 || type == ncclBfloat16 ? 2
                              : type == ncclFloat32 || type <= ncclUint32   ? 4
                                                                            : 8;
  count("library", call, n * element);
  reach(at, n * element, call);
  const std::string id = comm != nullptr ? comm->id : "none";
  if (!operation.messages.empty() && operation.group != id)
    problem(std::string(call) + ": two groups in one operation");
  operation.group = id;
  operation.messages += std::string(" ") + direction + std::to_string(peer) + ":" + std::to_string(n * element);
  if (operation.depth == 0) end_operation();
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* v) { return *v = NCCL_VERSION_CODE, ncclSuccess; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  null_device_call("ncclGetUniqueId");
  std::memset(id->internal, 0, sizeof id->internal);
  std::snprintf(id->internal, sizeof id->internal, "%d.%d", static_cast<int>(getpid()), made++);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* c, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  null_device_call("ncclCommInitRankConfig");
  // Without these, ranks may wait for each other for ever: kernels/base/device_memory.hpp.
  for (const char* name : {"CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_LAUNCH_ORDER_IMPLICIT"})
    if (std::getenv(name) == nullptr) problem(std::string("ncclCommInitRankConfig without ") + name);
  *c = new ncclComm{id.internal};
  tell("group " + (*c)->id + " " + std::to_string(rank) + " " + std::to_string(size));
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) { return null_device_call("ncclCommDestroy"), delete c, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t c) { return null_device_call("ncclCommAbort"), delete c, ncclSuccess; }
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* r) { return *r = ncclSuccess, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "null device"; }
const char* ncclGetLastError(ncclComm_t) { return "null device"; }
ncclResult_t ncclGroupStart() { return null_device_call("ncclGroupStart"), ++operation.depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  null_device_call("ncclGroupEnd");
  if (--operation.depth == 0) end_operation();
  return ncclSuccess;
}
ncclResult_t ncclSend(const void* p, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
  return message("ncclSend", '>', p, n, type, peer, comm, s);
}
ncclResult_t ncclRecv(void* p, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
  return message("ncclRecv", '<', p, n, type, peer, comm, s);
}
}
