#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "core/layout/block_memory.hpp"
#include "kernels/base/error.hpp"

namespace sestina {
namespace {

void check_runtime(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(ExitCode::unavailable, "CUDA: {}: {}", what, cudaGetErrorString(error));
}

void check_driver(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(error, &text);
  fail(ExitCode::unavailable, "CUDA: {}: {}", what, text != nullptr ? text : "unknown error");
}

CUdeviceptr address_of(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

struct BlockStream {
  BlockStream() { check_runtime(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"); }
  ~BlockStream() {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;
  cudaStream_t stream = nullptr;
};

struct UseEvent {
  UseEvent() { check_runtime(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"); }
  ~UseEvent() { cudaEventDestroy(event); }
  UseEvent(const UseEvent&) = delete;
  UseEvent& operator=(const UseEvent&) = delete;
  cudaEvent_t event = nullptr;
};

// Pieces of memory of one size, by virtual memory management of the driver. What no block has is kept for the next one.
class DevicePages {
 public:
  explicit DevicePages(int device) {
    property_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property_.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    access_ = {property_.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    std::size_t least = 0;
    check_driver(cuMemGetAllocationGranularity(&least, &property_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                 "asking for the size of pages");
    SESTINA_REQUIRE(least > 0 && device_page % least == 0, "pages of {} bytes", least);
  }
  ~DevicePages() {
    for (const CUmemGenericAllocationHandle page : free_) cuMemRelease(page);
  }
  DevicePages(const DevicePages&) = delete;
  DevicePages& operator=(const DevicePages&) = delete;

  void map(std::byte* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t whole = whole_device_pages(bytes);
    for (std::size_t begin = 0; begin < whole; begin += device_page) {
      const CUmemGenericAllocationHandle page = take();
      check_driver(cuMemMap(address_of(at + begin), device_page, 0, page, 0), "mapping memory of preconditioners");
      mapped_[at + begin] = page;
    }
    check_driver(cuMemSetAccess(address_of(at), whole, &access_, 1), "access to memory of preconditioners");
  }
  void unmap(std::byte* at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t whole = whole_device_pages(bytes);
    check_driver(cuMemUnmap(address_of(at), whole), "unmapping memory of preconditioners");
    for (std::size_t begin = 0; begin < whole; begin += device_page) {
      const auto page = mapped_.find(at + begin);
      free_.push_back(page->second);
      mapped_.erase(page);
    }
  }
  void unmap_all() {
    while (!mapped_.empty()) unmap(mapped_.begin()->first, device_page);
  }

 private:
  CUmemGenericAllocationHandle take() {
    CUmemGenericAllocationHandle page = 0;
    if (free_.empty()) {
      check_driver(cuMemCreate(&page, device_page, &property_, 0), "memory for preconditioners");
    } else {
      page = free_.back();
      free_.pop_back();
    }
    return page;
  }

  std::mutex mutex_;
  CUmemAllocationProp property_ = {};
  CUmemAccessDesc access_ = {};
  std::map<std::byte*, CUmemGenericAllocationHandle> mapped_;
  std::vector<CUmemGenericAllocationHandle> free_;
};

class CudaBlocks final : public DeviceBlocks {
 public:
  explicit CudaBlocks(int device) : device_(device), pages_(device) {}
  ~CudaBlocks() override {
    select();
    out_.reset();
    in_.reset();
    pages_.unmap_all();
  }

  std::size_t whole(std::size_t bytes) const override { return whole_device_pages(bytes); }
  void add(const std::byte* block) override { uses_.try_emplace(block); }
  void watch(void* queue) override {
    if (queue == nullptr || std::find(queues_.begin(), queues_.end(), queue) != queues_.end()) return;
    queues_.push_back(static_cast<cudaStream_t>(queue));
  }
  void come(std::byte* block, std::size_t bytes, bool zero) override {
    select();
    pages_.map(block, bytes);
    if (!zero) return;
    check_runtime(cudaMemsetAsync(block, 0, bytes, in_->stream), "zeros for preconditioners");
    check_runtime(cudaStreamSynchronize(in_->stream), "zeros for preconditioners");
  }
  void go(std::byte* block, std::size_t bytes) override {
    select();
    pages_.unmap(block, bytes);
  }
  void used(const std::byte* block) override {
    std::vector<std::unique_ptr<UseEvent>>& events = uses_.at(block);
    while (events.size() < queues_.size()) events.push_back(std::make_unique<UseEvent>());  // the first time
    for (std::size_t i = 0; i < events.size(); ++i)
      check_runtime(cudaEventRecord(events[i]->event, queues_[i]), "recording an event");
  }
  std::shared_ptr<std::byte> pinned(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    check_runtime(cudaMallocHost(&memory, bytes), "pinned host memory for preconditioners");
    auto* const first = static_cast<std::byte*>(memory);
    std::fill_n(first, bytes, std::byte{0});
    return {first, [](std::byte* at) { cudaFreeHost(at); }};
  }
  void start_out(int copy, const std::byte* block, std::byte* host, std::size_t bytes) override {
    select();
    for (const auto& use : uses_.at(block))
      check_runtime(cudaStreamWaitEvent(out_->stream, use->event, 0), "waiting for an event");
    start(copy, host, block, bytes, cudaMemcpyDeviceToHost, out_->stream);
  }
  void start_in(int copy, const std::byte* host, std::byte* block, std::size_t bytes) override {
    select();
    start(copy, block, host, bytes, cudaMemcpyHostToDevice, in_->stream);
  }
  bool is_done(int copy) override {
    const cudaError_t state = cudaEventQuery(ends_[static_cast<std::size_t>(copy)].event);
    if (state != cudaErrorNotReady) check_runtime(state, "copies of preconditioners");
    return state == cudaSuccess;
  }

 private:
  // The thread that moves blocks is another one than that which computes.
  void select() const { check_runtime(cudaSetDevice(device_), "choosing the device"); }
  void start(int copy, std::byte* to, const std::byte* from, std::size_t bytes, cudaMemcpyKind kind,
             cudaStream_t stream) {
    check_runtime(cudaMemcpyAsync(to, from, bytes, kind, stream), "copying preconditioners");
    check_runtime(cudaEventRecord(ends_[static_cast<std::size_t>(copy)].event, stream), "recording an event");
  }

  int device_;
  DevicePages pages_;
  std::unique_ptr<BlockStream> in_ = std::make_unique<BlockStream>(), out_ = std::make_unique<BlockStream>();
  std::array<UseEvent, most_copies> ends_;
  std::vector<cudaStream_t> queues_;
  std::map<const std::byte*, std::vector<std::unique_ptr<UseEvent>>> uses_;  // by block, of each queue
};

}  // namespace

std::shared_ptr<std::byte> device_addresses(std::size_t bytes) {
  const std::size_t whole = whole_device_pages(std::max<std::size_t>(bytes, 1));
  CUdeviceptr at = 0;
  check_runtime(cudaFree(nullptr), "starting the device");  // the driver needs a context
  check_driver(cuMemAddressReserve(&at, whole, device_page, 0, 0), "addresses for preconditioners");
  return {reinterpret_cast<std::byte*>(at), [whole](std::byte* first) { cuMemAddressFree(address_of(first), whole); }};
}

std::shared_ptr<DeviceBlocks> make_device_blocks() {
  int device = 0;
  check_runtime(cudaGetDevice(&device), "asking for the device");
  return std::make_shared<CudaBlocks>(device);
}

}  // namespace sestina
