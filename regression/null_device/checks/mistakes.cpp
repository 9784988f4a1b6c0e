// A program that makes one mistake with the device, by its argument; without one it makes none.
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cusolverDn.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

void kernel() {}  // known by its address alone
void launch() { cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, nullptr); }

// The time between two events around a kernel.
void measure(const std::string& mistake) {
  cudaEvent_t begin = nullptr, end = nullptr;
  float milliseconds = 0;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  if (mistake != "unrecorded") cudaEventRecord(begin, nullptr);
  launch();
  cudaEventRecord(end, nullptr);
  if (mistake != "unfinished") cudaEventSynchronize(end);
  cudaEventElapsedTime(&milliseconds, begin, end);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

// A stream for copies, which waits for the work of another by an event.
struct Queue {
  Queue() {
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~Queue() {
    cudaEventDestroy(event);
    cudaStreamDestroy(stream);
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr;
};

// A graph of a kernel.
void record(float* device, const float* pinned, const std::string& mistake) {
  const Queue queue;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  void* more = nullptr;
  cudaStreamBeginCapture(queue.stream, cudaStreamCaptureModeRelaxed);
  if (mistake != "recorded-nothing")
    cudaLaunchKernel(reinterpret_cast<const void*>(&kernel), dim3(1), dim3(1), nullptr, 0, queue.stream);
  if (mistake == "recorded-wait") cudaStreamSynchronize(queue.stream);
  if (mistake == "recorded-memory") cudaMalloc(&more, 8);
  if (mistake == "recorded-copy") cudaMemcpyAsync(device, pinned, 4, cudaMemcpyHostToDevice, queue.stream);
  if (mistake == "recorded-elsewhere") launch();
  cudaStreamEndCapture(queue.stream, &graph);
  cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  cudaGraphLaunch(made, queue.stream);
  cudaStreamSynchronize(queue.stream);
  cudaGraphExecDestroy(made);
  cudaFree(more);
}

// Memory behind reserved addresses, copied out after what used it, and given back.
void map_and_copy(float* host, std::size_t n, const std::string& mistake) {
  constexpr std::size_t bytes = std::size_t{2} << 20;
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle page = 0;
  const CUmemAllocationProp property = {};
  const CUmemAccessDesc access = {};
  const Queue queue;
  launch();
  cuMemAddressReserve(&at, bytes, bytes, 0, 0);
  cuMemCreate(&page, bytes, &property, 0);
  if (mistake != "unmapped") cuMemMap(at, bytes, 0, page, 0);
  if (mistake != "unmapped") cuMemSetAccess(at, bytes, &access, 1);
  launch();
  cudaEventRecord(queue.event, nullptr);
  launch();  // of no concern to this memory
  if (mistake != "unused") cudaStreamWaitEvent(queue.stream, queue.event, 0);
  cudaMemcpyAsync(host, reinterpret_cast<const void*>(at), n * sizeof(float), cudaMemcpyDefault, queue.stream);
  cudaStreamSynchronize(queue.stream);
  if (mistake != "unmapped" && mistake != "behind") cuMemUnmap(at, bytes);
  cuMemAddressFree(at, bytes);
  if (mistake != "kept") cuMemRelease(page);
}

// Managed memory whose pages are asked for on the device and, after what used it, back in host memory.
void ask_for_pages(const std::string& mistake) {
  constexpr std::size_t bytes = std::size_t{1} << 20;
  const CUmemLocation device = {CU_MEM_LOCATION_TYPE_DEVICE, {0}}, host = {CU_MEM_LOCATION_TYPE_HOST, {0}};
  void* memory = nullptr;
  const Queue queue;
  launch();
  cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal);
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  cuMemAdvise_v2(at, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host);
  cuMemAdvise_v2(at, bytes, CU_MEM_ADVISE_SET_ACCESSED_BY, device);
  if (mistake != "unasked") cuMemPrefetchAsync_v2(at, mistake == "beyond" ? 2 * bytes : bytes, device, 0, queue.stream);
  launch();
  cudaEventRecord(queue.event, nullptr);
  if (mistake != "hasty") cudaStreamWaitEvent(queue.stream, queue.event, 0);
  if (mistake != "beyond") cuMemPrefetchAsync_v2(at, bytes, host, 0, queue.stream);
  if (mistake != "managed") cudaFree(memory);
}

// Two products C (8, 8) = A B of matrices that lie anywhere, A from 0, B from 128, C from 256, whose places are in
// device memory too.
void multiply_lists(float* memory, const std::string& mistake) {
  constexpr int n = 8;
  cublasHandle_t handle = nullptr;
  cublasCreate(&handle);
  const float one = 1;
  const void* places[6] = {memory, memory + 64, memory + 128, memory + 192, memory + 256, memory + 320};
  if (mistake == "within") places[5] = memory + 64 + 63;
  if (mistake == "meeting") places[5] = memory + 256 + 63;
  if (mistake == "nowhere") places[3] = nullptr;
  const void** on_device = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&on_device), sizeof(places));
  cudaMemcpy(on_device, places, sizeof(places), cudaMemcpyHostToDevice);
  cublasGemmBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, mistake == "listed" ? places : on_device,
                      CUDA_R_32F, n, on_device + 2, CUDA_R_32F, n, &one, const_cast<void* const*>(on_device + 4),
                      CUDA_R_32F, n, 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  cudaFree(on_device);
  cublasDestroy(handle);
}

// Two products C (8, n) = A B of 4 and 2 columns, A from 0, B from 128, C from 256.
void multiply_groups(float* memory, const std::string& mistake) {
  cublasHandle_t handle = nullptr;
  cublasCreate(&handle);
  const void* places[6] = {memory, memory + 64, memory + 128, memory + 192, memory + 256, memory + 320};
  if (mistake == "group-meeting") places[5] = memory + 256 + 31;
  if (mistake == "group-uneven") places[1] = memory + 65;
  const void** on_device = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&on_device), sizeof(places));
  cudaMemcpy(on_device, places, sizeof(places), cudaMemcpyHostToDevice);
  const cublasOperation_t plain[2] = {CUBLAS_OP_N, CUBLAS_OP_N};
  const int eight[2] = {8, 8}, columns[2] = {4, mistake == "group-negative" ? -1 : 2}, size[2] = {1, 1};
  const int leading[2] = {8, mistake == "group-leading" ? 7 : 8};
  const float one[2] = {1, 1};
  cublasGemmGroupedBatchedEx(
      handle, plain, plain, mistake == "group-sizes" ? reinterpret_cast<const int*>(memory) : eight, columns, eight,
      one, mistake == "group-listed" ? places : on_device, CUDA_R_32F, leading, on_device + 2, CUDA_R_32F, eight, one,
      const_cast<void* const*>(on_device + 4), mistake == "group-types" ? CUDA_R_16BF : CUDA_R_32F, eight, 2, size,
      mistake == "group-uneven" ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
  cudaFree(on_device);
  cublasDestroy(handle);
}

// A product C (m, n) = A B and one of a batch of two, in memory of 1000 floats: A from 0, B from 200, C from 400.
void multiply(float* memory, const std::string& mistake) {
  constexpr int m = 8, n = 10, k = 12;
  cublasHandle_t handle = nullptr;
  cublasCreate(&handle);
  cublasSetStream(handle, nullptr);
  cublasSetWorkspace(handle, memory + 512, 1024);
  const float one = 1;
  const float* const a = mistake == "null" ? nullptr : mistake == "host" ? &one : memory;
  const float* const b = mistake == "outside" ? memory + 990 : memory + 200;
  float* const c = mistake == "aliased" ? memory + 200 + k - 1 : memory + 400;
  const void* const uneven = reinterpret_cast<const char*>(a) + (mistake == "uneven" ? 2 : 0);
  cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, m, n, mistake == "negative" ? -1 : k,
               mistake == "factor" ? memory : &one, uneven, CUDA_R_32F, mistake == "leading" ? m - 1 : m, b,
               mistake == "types" ? CUDA_R_16BF : CUDA_R_32F, k, &one, c, CUDA_R_32F, m,
               mistake == "sums" ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  // Next to each other in rows of 16, each of 8 x 4.
  cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, 8, 4, 4, &one, memory, CUDA_R_32F, 16, 8, memory + 100,
                             CUDA_R_32F, 4, 16, &one, memory + 200, CUDA_R_32F, 16, mistake == "overlap" ? 7 : 8,
                             mistake == "batch" ? -1 : 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  cublasDestroy(handle);
}

// Three matrices, 4 x 4, one behind the other.
void decompose_together(cusolverDnHandle_t handle, float* memory, int* info, const std::string& mistake) {
  constexpr int n = 4, count = 3;
  const cudaDataType type = CUDA_R_32F;
  std::size_t bytes = 0, on_host = 0;
  void* work = nullptr;
  cusolverDnParams_t params = nullptr;
  cusolverDnCreateParams(&params);
  cusolverDnXsyevBatched_bufferSize(handle, params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, type, nullptr,
                                    n, type, nullptr, type, &bytes, &on_host, count);
  cudaMalloc(&work, bytes);
  std::vector<char> host(on_host);
  cusolverDnXsyevBatched(handle, params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, type, memory,
                         mistake == "together-rows" ? n - 1 : n, type,
                         memory + (mistake == "together-values" ? 40 : 64),
                         mistake == "together-types" ? CUDA_R_64F : type, work,
                         mistake == "together-scratch" ? bytes - 1 : bytes, host.data(), on_host, info, count);
  cudaFree(work);
  cusolverDnDestroyParams(params);
}

// Decompositions of an 8 x 8 matrix, with scratch as their queries answer.
void decompose(float* memory, int* info, const std::string& mistake) {
  constexpr int n = 8;
  int size = 0;
  float* work = nullptr;
  cusolverDnHandle_t handle = nullptr;
  cusolverDnCreate(&handle);
  cusolverDnSsyevd_bufferSize(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, nullptr, n, nullptr, &size);
  cudaMalloc(reinterpret_cast<void**>(&work), static_cast<std::size_t>(size) * sizeof(float));
  cusolverDnSsyevd(handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, memory, mistake == "rows" ? n - 1 : n,
                   memory + (mistake == "values" ? 60 : 64), mistake == "scratchless" ? nullptr : work,
                   mistake == "scratch" ? size - 1 : size, mistake == "info" ? nullptr : info);
  cusolverDnSgeqrf_bufferSize(handle, n, n, nullptr, n, &size);
  cusolverDnSgeqrf(handle, n, n, memory, n, memory + 64, work, mistake == "factor-scratch" ? 10 : size, info);
  cusolverDnSorgqr_bufferSize(handle, n, n, n, nullptr, n, nullptr, &size);
  cusolverDnSorgqr(handle, n, mistake == "wide" ? n + 1 : n, n, memory, n, memory + 64, work, size, info);
  cudaFree(work);
  decompose_together(handle, memory, info, mistake);
  cusolverDnDestroy(handle);
}

// A message and a copy to the host after a kernel and products of another stream.
void send(float* values, float* host, std::size_t n, const std::string& mistake) {
  const Queue queue;
  launch();
  cudaEventRecord(queue.event, nullptr);
  if (mistake == "late") multiply(values, mistake);
  if (mistake != "unordered") cudaStreamWaitEvent(queue.stream, queue.event, 0);
  ncclSend(values, n, ncclFloat, 0, nullptr, queue.stream);
  if (mistake == "early") launch();
  cudaMemcpyAsync(host, values, n * sizeof(float), cudaMemcpyDefault, queue.stream);
  cudaStreamSynchronize(queue.stream);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string mistake = count > 1 ? arguments[1] : "none";
  constexpr std::size_t n = 1000, bytes = n * sizeof(float);
  float *device = nullptr, *host = nullptr;
  for (const char* name : {"CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_LAUNCH_ORDER_IMPLICIT"})
    if (mistake != "lazy") setenv(name, "set", 0);
  cudaMalloc(reinterpret_cast<void**>(&device), bytes);
  multiply(device, mistake);
  multiply_lists(device, mistake);
  multiply_groups(device, mistake);
  decompose(device, reinterpret_cast<int*>(device + 900), mistake);
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
  send(device, host, n, mistake);
  map_and_copy(host, n, mistake);
  ask_for_pages(mistake);
  measure(mistake);
  record(device, host, mistake);
  if (mistake == "touched") device[0] = 1;
  cudaFreeHost(host);
  if (mistake != "leaked") cudaFree(device);
}
