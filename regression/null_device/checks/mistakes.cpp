// A program that makes one mistake with the device, by its argument; without one it makes none.
#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

int main(int count, char** arguments) {
  const std::string mistake = count > 1 ? arguments[1] : "none";
  constexpr std::size_t n = 1000, bytes = n * sizeof(float);
  float *device = nullptr, *host = nullptr;
  cudaMalloc(reinterpret_cast<void**>(&device), bytes);
  cudaMallocHost(reinterpret_cast<void**>(&host), bytes);
  std::memset(host, 1, bytes);
  cudaMemcpyAsync(device, host, mistake == "overrun" ? bytes + 4 : bytes, cudaMemcpyDefault, nullptr);
  if (mistake == "changed") host[0] = 5;
  cudaStreamSynchronize(nullptr);
  if (mistake == "touched") device[0] = 1;
  cudaFreeHost(host);
  if (mistake != "leaked") cudaFree(device);
}
