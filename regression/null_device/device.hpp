// A CUDA device that does nothing, for machines without a GPU: the host side of a CUDA program runs, is checked and is
// counted. Kernels and library calls have no effect; device memory is real, zero at first, and no host code may touch
// it. This is what its parts share; README.md says what is checked.
#pragma once
#include <cuda_runtime_api.h>
#include <library_types.h>
#include <signal.h>

#include <cstddef>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace null_device {

struct Count {
  unsigned long long calls = 0, bytes = 0;
};
struct Stream;
// Of each stream, how many of its kernels something comes after.
using Order = std::map<const Stream*, std::size_t>;
struct Allocation {
  std::size_t bytes = 0;
  cudaMemoryType type = cudaMemoryTypeDevice;
  std::string label;
  Order kernels = {};  // of mapped memory: launched before it was
};
// A copy to or from pinned host memory that the host has not waited for, or a wait for another stream.
struct Pending {
  char* host = nullptr;
  bool to_host = false;
  std::vector<char> data;
  std::string label;
  Stream* other = nullptr;
  std::size_t other_end = 0;
};
struct Stream {
  std::deque<Pending> queue;
  std::size_t done = 0;  // entries that have left the queue
  std::size_t end() const { return done + queue.size(); }
  std::size_t kernels = 0;  // launched in it
  Order after;              // what its next work comes after, by events
};
struct Event {
  Stream* stream = nullptr;
  std::size_t end = 0;
  Order after = {};
};
struct Kernel {
  std::string name;
  int threads = 1024;
  int dynamic_shared = 48 << 10;
};

std::size_t number(const char* name, std::size_t otherwise);  // of the environment

struct Device {
  std::recursive_mutex mutex;
  const std::size_t size = number("NULL_DEVICE_BYTES", 150754820096) / 4096 * 4096;
  const int fill = static_cast<int>(number("NULL_DEVICE_FILL", 0));
  const bool strict = number("NULL_DEVICE_STRICT", 0) != 0;
  int file = -1;
  char* base = nullptr;                      // what the program sees: no access
  char* shadow = nullptr;                    // the same pages for copies
  std::map<std::size_t, std::size_t> holes;  // free stretches: offset, bytes
  std::map<const char*, Allocation> memory;
  std::size_t in_use = 0, peak = 0, pinned = 0, pinned_peak = 0;
  std::map<std::string, std::map<std::string, Count>> counts;
  std::map<const void*, Kernel> kernels;
  std::map<const void*, char*> symbols;
  std::map<const void*, std::size_t> symbol_bytes;
  std::vector<Stream*> streams{new Stream};
  Order waited;                      // what the host has waited for
  Stream* recording = nullptr;       // the stream whose work is recorded for a graph (graphs.cpp)
  std::size_t recorded_kernels = 0;  // so far
  struct sigaction old_segv = {}, old_abort = {};

  Device();
};
Device& dev();
using Lock = std::lock_guard<std::recursive_mutex>;

// From Kokkos, where it tells.
inline thread_local std::string kernel_label, fence_label, copy_label;
inline thread_local cudaError_t last_error = cudaSuccess;

void count(const char* kind, const std::string& name, std::size_t bytes = 0);
cudaError_t result(cudaError_t error);
void problem(const std::string& text);  // something that a real device would not forgive
void refuse_while_recording(const std::string& what);

// memory.cpp
std::pair<const char*, Allocation*> find(const void* at);
bool in_arena(const void* at);
std::string label_of(const void* at);
std::string place(const void* at);  // device, pinned, managed or pageable
// Where copies reach the memory; the stretch has to lie in one allocation.
char* reach(const void* at, std::size_t bytes, const char* what);
cudaError_t allocate(void** out, std::size_t bytes, const char* call);
cudaError_t release(void* at, const char* call);
cudaError_t allocate_host(void** out, std::size_t bytes, cudaMemoryType type, const char* call);
cudaError_t release_host(void* at, const char* call);
// Rows of a copy; a plain one has one row.
cudaError_t copy(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, std::size_t bytes,
                 std::size_t rows, cudaStream_t stream, bool async, const char* call);
cudaError_t set(void* at, int value, std::size_t bytes, const char* call);
void* symbol(const void* host);

// Streams: what the host has not waited for.
Stream& stream_of(cudaStream_t stream);
void drain(Stream& stream, std::size_t end);
void drain_all();
void join(Order& order, const Order& other);                // comes after the other as well
Order order_of(const Stream& stream);                       // of what is queued there now
void require_order(cudaStream_t stream, const char* call);  // a message comes after all kernels of other streams
// A copy from memory that is mapped for a while comes after an event of a stream with kernels, since it was mapped:
// kernels that were launched since, or in other streams, may be at work on other memory.
void require_order_since(const Order& then, cudaStream_t stream, const char* call);
void waited(const char* call);

void add_leaks_of_mapped_memory();  // mapped_memory.cpp

// managed_memory.cpp
bool is_managed(const void* at);
void count_managed_operand(const void* at);  // whether its pages were asked for on the device
cudaError_t release_managed(void* at, const char* call);
void add_peak_of_managed_memory();

// operands.cpp: a call of a library of algebra. What the library would refuse is a problem, and each call is recorded.
struct Operand {
  const char* name;
  const void* at;
  cudaDataType_t type;
  long long rows, cols, leading;    // column-major
  long long count = 1, stride = 0;  // of a batch, in elements
  bool is_result = false;           // no other operand may lie where it does
};
class LibraryCall {
 public:
  LibraryCall(const std::string& name, cudaStream_t stream);
  void size(const char* name, long long value);  // at least 0
  void fact(const char* name, const std::string& text);
  void operand(const Operand& given);
  void operands(Operand given, const std::vector<const void*>& places);  // matrices of a batch that lie anywhere
  void each(const std::vector<Operand>& all);                            // one operand of products whose sizes differ
  void list(const char* name, const std::vector<std::vector<long long>>& rows);
  void memory(const char* name, const void* at, long long elements, cudaDataType_t type);  // a vector or scratch
  void refuse(const std::string& why);
  bool end();  // records the call; whether the library takes it

 private:
  void record(const Operand& x, int align);
  void check(const Operand& x);
  std::string name_, record_;
  std::vector<Operand> given_;
  bool good_ = true;
};
// What a handle of cuBLAS or cuSOLVER knows.
struct LibraryHandle {
  cudaStream_t stream = nullptr;
  const void* workspace = nullptr;
  std::size_t bytes = 0;  // of the workspace; 0: the library's own
};
template <class Handle>  // cublasHandle_t or cusolverDnHandle_t
LibraryHandle& handle_of(Handle handle) {
  return *reinterpret_cast<LibraryHandle*>(handle);
}
void write_records();  // NULL_DEVICE_RECORDS

// report.cpp
void start();  // when the device is first asked for, so that the program's own handlers come before
void report();
std::string path_of_rank(const char* variable);  // a file that the environment names, one for each rank
void backtrace_to_stderr();                      // the functions of the program itself that led here, innermost first
std::string demangled(const std::string& name);

}  // namespace null_device
