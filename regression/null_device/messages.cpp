// NCCL: messages are checked and counted, and their order is told (NULL_DEVICE_MESSAGES), so that order.py finds
// whether the ranks of a run can wait for each other in a circle.
//
//   group ID RANK SIZE             a communicator: this process is RANK of its SIZE ranks
//   messages ID >PEER:BYTES <PEER:BYTES...   an operation of it: sent to (>) and received from (<) ranks of it
//
// A collective ends when all ranks have begun it: it is told as messages of its bytes from each rank to each other.
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

using namespace null_device;

extern "C" int null_device_call(const char* name);

struct ncclComm {
  std::string id;
  int rank = 0, size = 1;
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

std::size_t bytes_of(ncclDataType_t type) {
  return type <= ncclUint8                             ? 1
         : type == ncclFloat16 || type == ncclBfloat16 ? 2
         : type == ncclFloat32 || type <= ncclUint32   ? 4
                                                       : 8;
}

// A collective reads `sent` elements and writes `received`.
ncclResult_t collective(const char* call, const void* from, std::size_t sent, const void* to, std::size_t received,
                        ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  Lock lock(dev().mutex);
  require_order(stream, call);
  const std::size_t element = bytes_of(type), bytes = std::max(sent, received) * element;
  count("library", call, bytes);
  if (sent > 0) reach(from, sent * element, call);
  if (received > 0) reach(to, received * element, call);
  if (!operation.messages.empty() && operation.group != comm->id)
    problem(std::string(call) + ": two groups in one operation");
  operation.group = comm->id;
  for (int peer = 0; peer < comm->size; ++peer)
    if (peer != comm->rank)
      for (const char direction : {'>', '<'})
        operation.messages += std::string(" ") + direction + std::to_string(peer) + ":" + std::to_string(bytes);
  if (operation.depth == 0) end_operation();
  return ncclSuccess;
}

ncclResult_t message(const char* call, char direction, const void* at, std::size_t n, ncclDataType_t type, int peer,
                     ncclComm_t comm, cudaStream_t stream) {
  Lock lock(dev().mutex);
  require_order(stream, call);
  const std::size_t element = bytes_of(type);
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
  *c = new ncclComm{id.internal, rank, size};
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
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t c, cudaStream_t s) {
  return collective("ncclReduceScatter", from, n * static_cast<std::size_t>(c->size), to, n, type, c, s);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclComm_t c,
                           cudaStream_t s) {
  return collective("ncclAllGather", from, n, to, n * static_cast<std::size_t>(c->size), type, c, s);
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t n, ncclDataType_t type, ncclRedOp_t, int root,
                        ncclComm_t c, cudaStream_t s) {
  return collective("ncclReduce", from, n, to, root == c->rank ? n : 0, type, c, s);
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t n, ncclDataType_t type, int root, ncclComm_t c,
                           cudaStream_t s) {
  return collective("ncclBroadcast", from, root == c->rank ? n : 0, to, n, type, c, s);
}
}
