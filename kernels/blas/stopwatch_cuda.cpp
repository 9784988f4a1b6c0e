#include <cuda_runtime_api.h>

#include "kernels/base/error.hpp"
#include "kernels/blas/stopwatch.hpp"

namespace sestina {
namespace {

void check(cudaError_t error, const char* what) {
  SESTINA_REQUIRE(error == cudaSuccess, "{}: {}", what, cudaGetErrorString(error));
}

}  // namespace

template <>
struct Stopwatch<Kokkos::Cuda>::State {
  explicit State(const Kokkos::Cuda& space) : exec(space) {
    check(cudaEventCreate(&begin), "creating a CUDA event");
    check(cudaEventCreate(&end), "creating a CUDA event");
  }
  ~State() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Kokkos::Cuda exec;
  cudaEvent_t begin = nullptr, end = nullptr;
};

template <>
Stopwatch<Kokkos::Cuda>::Stopwatch(const Kokkos::Cuda& exec) : state_(std::make_unique<State>(exec)) {}
template <>
Stopwatch<Kokkos::Cuda>::~Stopwatch() = default;
template <>
Stopwatch<Kokkos::Cuda>::Stopwatch(Stopwatch&&) noexcept = default;

template <>
void Stopwatch<Kokkos::Cuda>::start() {
  check(cudaEventRecord(state_->begin, state_->exec.cuda_stream()), "recording a CUDA event");
}
template <>
void Stopwatch<Kokkos::Cuda>::stop() {
  check(cudaEventRecord(state_->end, state_->exec.cuda_stream()), "recording a CUDA event");
}
template <>
double Stopwatch<Kokkos::Cuda>::seconds() const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, state_->begin, state_->end), "reading CUDA events");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace sestina
