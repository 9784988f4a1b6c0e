// A program that makes one mistake with the device, by its argument; without one it makes none.
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

void kernel() {}  // known by its address alone

// A message and a copy to the host after a kernel of another stream.
void send(float* values, float* host, std::size_t n, bool in_order, bool copy_in_order) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
  cudaEventRecord(event, nullptr);
  if (in_order) cudaStreamWaitEvent(stream, event, 0);
  ncclSend(values, n, ncclFloat, 0, nullptr, stream);
  if (!copy_in_order) cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
  cudaMemcpyAsync(host, values, n * sizeof(float), cudaMemcpyDefault, stream);
  cudaStreamSynchronize(stream);
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

// Memory behind reserved addresses, copied out after what used it, and given back.
void map_and_copy(float* host, std::size_t n, const std::string& mistake) {
  constexpr std::size_t bytes = std::size_t{2} << 20;
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle page = 0;
  const CUmemAllocationProp property = {};
  const CUmemAccessDesc access = {};
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  const auto launch = [] {
    cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr);
  };
  launch();
  cuMemAddressReserve(&at, bytes, bytes, 0, 0);
  cuMemCreate(&page, bytes, &property, 0);
  if (mistake != "unmapped") cuMemMap(at, bytes, 0, page, 0);
  if (mistake != "unmapped") cuMemSetAccess(at, bytes, &access, 1);
  launch();
  cudaEventRecord(event, nullptr);
  launch();  // of no concern to this memory
  if (mistake != "unused") cudaStreamWaitEvent(stream, event, 0);
  cudaMemcpyAsync(host, reinterpret_cast<const void*>(at), n * sizeof(float), cudaMemcpyDefault, stream);
  cudaStreamSynchronize(stream);
  if (mistake != "unmapped" && mistake != "behind") cuMemUnmap(at, bytes);
  cuMemAddressFree(at, bytes);
  if (mistake != "kept") cuMemRelease(page);
  cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mistake = count > 1 ? arguments[1] : "none";
  constexpr std::size_t n = 1000, bytes = n * sizeof(float);
  float *device = nullptr, *host = nullptr;
  for (const char* name : {"CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_LAUNCH_ORDER_IMPLICIT"})
    if (mistake != "lazy") setenv(name, "set", 0);
  cudaMalloc(reinterpret_cast<void**>(&device), bytes);
  cublasHandle_t products = nullptr;
  cublasCreate(&products);
  cublasSetWorkspace(products, device + (mistake == "unaligned" ? 1 : 0), bytes / 2);
  cublasDestroy(products);
  ncclComm_t alone = nullptr;
  ncclUniqueId id = {};
  ncclCommInitRankConfig(&alone, 1, id, 0, nullptr);
  ncclCommDestroy(alone);
  cudaMallocHost(reinterpret_cast<void**>(&host), bytes);
  std::memset(host, 1, bytes);
  cudaMemcpyAsync(device, host, mistake == "overrun" ? bytes + 4 : bytes, cudaMemcpyDefault, nullptr);
  if (mistake == "changed") host[0] = 5;
  cudaStreamSynchronize(nullptr);
  send(device, host, n, mistake != "unordered", mistake != "early");
  map_and_copy(host, n, mistake);
  if (mistake == "touched") device[0] = 1;
  cudaFreeHost(host);
  if (mistake != "leaked") cudaFree(device);
}
