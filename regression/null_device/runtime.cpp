// The CUDA runtime. What is not written in these sources, build.sh makes: a function that counts its call and
// returns 0 (success).
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"

namespace null_device {
namespace {

thread_local struct Launch {
  dim3 grid, block;
  std::size_t shared = 0;
  cudaStream_t stream = nullptr;
} launch_setting;

cudaError_t launch(const Kernel& kernel, dim3 grid, dim3 block, void** args, std::size_t shared, cudaStream_t stream) {
  Lock lock(dev().mutex);
  if (dev().recording == nullptr)
    ++stream_of(stream).kernels;
  else
    ++dev().recorded_kernels;
  if (dev().recording != nullptr && dev().recording != &stream_of(stream))
    refuse_while_recording("a launch in another stream");
  count("launch", kernel_label.empty() ? "(" + demangled(kernel.name).substr(0, 160) + ")" : kernel_label);
  count("kernel", kernel.name);
  const bool fits = grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= 2147483647u && grid.y <= 65535 &&
                    grid.z <= 65535 && block.x >= 1 && block.y >= 1 && block.z >= 1 && block.x <= 1024 &&
                    block.y <= 1024 && block.z <= 64 && block.x * block.y * block.z <= unsigned(kernel.threads) &&
                    shared <= std::size_t(kernel.dynamic_shared);
  if (!fits) {
    char text[256];
    std::snprintf(text, sizeof text, "launch of \"%s\" with grid %u %u %u, block %u %u %u, %zu bytes of shared memory",
                  kernel_label.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared);
    problem(text);
    return result(cudaErrorInvalidConfiguration);
  }
  // Kokkos asks a kernel which architecture it was compiled for.
  if (kernel.name.find("query_cuda_kernel_arch") != kernel.name.npos)
    *reinterpret_cast<int*>(reach(*static_cast<void**>(args[0]), sizeof(int), "launch")) = 900;
  return cudaSuccess;
}
Kernel& kernel_of(const void* function) { return dev().kernels[function]; }

}  // namespace
}  // namespace null_device

using namespace null_device;

extern "C" {

int null_device_call(const char* name) {
  Lock lock(dev().mutex);
  count(
      std::strncmp(name, "cuda", 4) == 0 || (name[0] == 'c' && name[1] == 'u' && name[2] < 'a') ? "runtime" : "library",
      name);
  return 0;
}

// ---- the runtime's registration and launches
void** __cudaRegisterFatBinary(void*) { return new void*; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int limit, void*, void*, void*, void*,
                            int*) {
  dev().kernels[host] = {name, limit > 0 ? limit : 1024};
}
void __cudaRegisterVar(void**, char* host, char*, const char*, int, std::size_t bytes, int, int) {
  dev().symbol_bytes[host] = bytes;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared, CUstream_st* stream) {
  launch_setting = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  *grid = launch_setting.grid, *block = launch_setting.block, *shared = launch_setting.shared;
  *static_cast<cudaStream_t*>(stream) = launch_setting.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* function) {
  *out = reinterpret_cast<cudaKernel_t>(&kernel_of(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, std::size_t shared,
                               cudaStream_t stream) {
  return launch(*reinterpret_cast<Kernel*>(kernel), grid, block, args, shared, stream);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, std::size_t shared,
                             cudaStream_t stream) {
  return launch(kernel_of(function), grid, block, args, shared, stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* function) {
  *out = {};
  out->maxThreadsPerBlock = kernel_of(function).threads;
  out->numRegs = 32;
  out->binaryVersion = out->ptxVersion = 90;
  out->maxDynamicSharedSizeBytes = kernel_of(function).dynamic_shared;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  Lock lock(dev().mutex);
  count("runtime", "cudaFuncSetAttribute");
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value > 232448) return result(cudaErrorInvalidValue);
    kernel_of(function).dynamic_shared = value;
  }
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int threads, std::size_t) {
  *blocks = std::clamp(2048 / std::max(threads, 1), 1, 32);
  return cudaSuccess;
}

// ---- devices: H200
cudaError_t cudaGetDeviceCount(int* n) {
  start();
  *n = static_cast<int>(number("NULL_DEVICE_COUNT", 1));
  return cudaSuccess;
}
thread_local int current = 0;
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  start();
  current = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  start();
  *p = {};
  const char* const name = std::getenv("NULL_DEVICE_NAME");
  std::snprintf(p->name, sizeof p->name, "%s", name != nullptr ? name : "null device");
  std::memset(p->uuid.bytes, device, sizeof p->uuid.bytes);
  p->totalGlobalMem = dev().size;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerMultiprocessor = 233472;
  p->sharedMemPerBlockOptin = 232448;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = 9;
  p->multiProcessorCount = 132;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->l2CacheSize = 62914560;
  p->unifiedAddressing = p->managedMemory = p->concurrentManagedAccess = p->concurrentKernels = 1;
  p->canMapHostMemory = p->asyncEngineCount = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const std::map<int, int> known = {
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrMultiProcessorCount, 132},
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrConcurrentManagedAccess, static_cast<int>(number("NULL_DEVICE_UNIFIED", 1))},
      {cudaDevAttrManagedMemory, 1},
      {cudaDevAttrUnifiedAddressing, 1},
      {cudaDevAttrMemoryPoolsSupported, 1},
      {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448}};
  const auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = dev().size, *free = dev().size - dev().in_use;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetLimit(std::size_t* v, cudaLimit) { return *v = 8 << 20, cudaSuccess; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : e ? "cudaError" : "cudaSuccess";
}
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "out of memory" : e ? "error (null device)" : "no error";
}
CUresult cuStreamGetCtx(CUstream, CUcontext* c) { return *c = reinterpret_cast<CUcontext>(&dev()), CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* d) { return *d = current, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int* n) { return cudaGetDeviceCount(n), CUDA_SUCCESS; }

// ---- memory
cudaError_t cudaMalloc(void** p, std::size_t n) { return allocate(p, n, "cudaMalloc"); }
cudaError_t cudaMallocAsync(void** p, std::size_t n, cudaStream_t) { return allocate(p, n, "cudaMallocAsync"); }
cudaError_t cudaFree(void* p) { return is_managed(p) ? release_managed(p, "cudaFree") : release(p, "cudaFree"); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t) { return release(p, "cudaFreeAsync"); }
cudaError_t cudaMallocHost(void** p, std::size_t n) {
  return allocate_host(p, n, cudaMemoryTypeHost, "cudaMallocHost");
}
cudaError_t cudaHostAlloc(void** p, std::size_t n, unsigned) {
  return allocate_host(p, n, cudaMemoryTypeHost, "cudaHostAlloc");
}
cudaError_t cudaFreeHost(void* p) { return release_host(p, "cudaFreeHost"); }
cudaError_t cudaHostRegister(void* p, std::size_t n, unsigned) {
  Lock lock(dev().mutex);
  dev().memory[static_cast<char*>(p)] = {n, cudaMemoryTypeHost, "registered"};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* p) {
  Lock lock(dev().mutex);
  drain_all();
  dev().memory.erase(static_cast<char*>(p));
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
  Lock lock(dev().mutex);
  count("runtime", "cudaPointerGetAttributes");
  *out = {};
  const auto found = find(p).second;
  out->type = found ? found->type : cudaMemoryTypeUnregistered;
  out->device = found ? current : -2;
  if (found) out->devicePointer = const_cast<void*>(p);
  if (found && found->type != cudaMemoryTypeDevice) out->hostPointer = const_cast<void*>(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t n, cudaMemcpyKind) {
  return copy(to, 0, from, 0, n, 1, nullptr, false, "cudaMemcpy");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t n, cudaMemcpyKind, cudaStream_t s) {
  return copy(to, 0, from, 0, n, 1, s, true, "cudaMemcpyAsync");
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t ts, const void* from, std::size_t fs, std::size_t n,
                              std::size_t rows, cudaMemcpyKind, cudaStream_t s) {
  return copy(to, ts, from, fs, n, rows, s, true, "cudaMemcpy2DAsync");
}
cudaError_t cudaMemcpyToSymbol(const void* s, const void* from, std::size_t n, std::size_t at, cudaMemcpyKind) {
  return copy(static_cast<char*>(symbol(s)) + at, 0, from, 0, n, 1, nullptr, false, "cudaMemcpyToSymbol");
}
cudaError_t cudaMemcpyToSymbolAsync(const void* s, const void* from, std::size_t n, std::size_t at, cudaMemcpyKind,
                                    cudaStream_t t) {
  return copy(static_cast<char*>(symbol(s)) + at, 0, from, 0, n, 1, t, true, "cudaMemcpyToSymbolAsync");
}
cudaError_t cudaGetSymbolAddress(void** p, const void* s) { return *p = symbol(s), cudaSuccess; }
cudaError_t cudaMemset(void* p, int v, std::size_t n) { return set(p, v, n, "cudaMemset"); }
cudaError_t cudaMemsetAsync(void* p, int v, std::size_t n, cudaStream_t) { return set(p, v, n, "cudaMemsetAsync"); }

// ---- streams and events
cudaError_t cudaStreamCreate(cudaStream_t* s) {
  Lock lock(dev().mutex);
  count("runtime", "cudaStreamCreate");
  dev().streams.push_back(new Stream);
  *s = reinterpret_cast<cudaStream_t>(dev().streams.back());
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return cudaStreamCreate(s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) { return cudaStreamCreate(s); }
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  Lock lock(dev().mutex);
  drain(stream_of(s), stream_of(s).end());  // kept: events may point to it
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  Lock lock(dev().mutex);
  waited("cudaStreamSynchronize");
  drain(stream_of(s), stream_of(s).end());
  join(dev().waited, order_of(stream_of(s)));
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  Lock lock(dev().mutex);
  waited("cudaDeviceSynchronize");
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  Lock lock(dev().mutex);
  count("runtime", "cudaStreamQuery");
  refuse_while_recording("cudaStreamQuery");
  drain(stream_of(s), stream_of(s).end());
  join(dev().waited, order_of(stream_of(s)));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  Lock lock(dev().mutex);
  count("runtime", "cudaStreamWaitEvent");
  const Event& event = *reinterpret_cast<Event*>(e);
  if (event.stream) stream_of(s).queue.push_back({.other = event.stream, .other_end = event.end});
  join(stream_of(s).after, event.after);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  Lock lock(dev().mutex);
  count("runtime", "cudaEventCreate");
  *e = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  delete reinterpret_cast<Event*>(e);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  Lock lock(dev().mutex);
  count("runtime", "cudaEventRecord");
  *reinterpret_cast<Event*>(e) = {&stream_of(s), stream_of(s).end(), order_of(stream_of(s))};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  Lock lock(dev().mutex);
  count("runtime", "cudaEventQuery");
  refuse_while_recording("cudaEventQuery");
  const Event& event = *reinterpret_cast<Event*>(e);
  if (event.stream) drain(*event.stream, event.end);
  join(dev().waited, event.after);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  Lock lock(dev().mutex);
  waited("cudaEventSynchronize");
  const Event& event = *reinterpret_cast<Event*>(e);
  if (event.stream) drain(*event.stream, event.end);
  join(dev().waited, event.after);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  Lock lock(dev().mutex);
  count("runtime", "cudaEventElapsedTime");
  *ms = 1e-3f;
  for (const cudaEvent_t each : {begin, end}) {
    const Event& event = *reinterpret_cast<Event*>(each);
    if (event.stream == nullptr) {
      problem("cudaEventElapsedTime of an event that was never recorded");
      return result(cudaErrorInvalidResourceHandle);
    }
    for (const auto& [stream, kernels] : event.after)
      if (dev().waited[stream] < kernels) {  // a device may have got there, and may not
        problem("cudaEventElapsedTime of an event that the host has not waited for");
        return result(cudaErrorNotReady);
      }
  }
  return cudaSuccess;
}

}  // extern "C"
