#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/memory/blocks.hpp"
#include "core/memory/unified_memory.hpp"
#include "kernels/base/cuda_driver.hpp"
#include "kernels/base/cuda_queue.hpp"

namespace sestina {
namespace {

CUdeviceptr address_of(const std::byte* at) { return reinterpret_cast<CUdeviceptr>(at); }

// Pieces of memory of one size, by virtual memory management of the driver. A piece that no block has is kept for the
// next.
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
    for (const CudaStream* copies : {&in_, &out_}) cudaStreamSynchronize(*copies);
    pages_.unmap_all();
  }

  std::size_t whole(std::size_t bytes) const override { return whole_device_pages(bytes); }
  void keep(std::size_t) override {}  // pieces are always kept
  void add(const std::shared_ptr<std::byte>& block) override {
    blocks_.try_emplace(block.get(), Block{.unified = is_unified(block), .uses = {}});
  }
  void watch(void* queue) override {
    if (queue == nullptr || std::find(queues_.begin(), queues_.end(), queue) != queues_.end()) return;
    queues_.push_back(static_cast<cudaStream_t>(queue));
  }
  void come(std::byte* block, std::size_t bytes, bool zero) override {
    select();
    if (blocks_.at(block).unified)
      ask_for_pages(block, bytes, device_, in_);
    else
      pages_.map(block, bytes);
    if (!zero) return;
    check_cuda(cudaMemsetAsync(block, 0, bytes, in_), "zeros for preconditioners");
    in_.wait();
  }
  void go(std::byte* block, std::size_t bytes) override {
    if (blocks_.at(block).unified) return;
    select();
    pages_.unmap(block, bytes);
  }
  void used(const std::byte* block) override {
    std::vector<std::unique_ptr<CudaEvent>>& events = blocks_.at(block).uses;
    while (events.size() < queues_.size()) events.push_back(std::make_unique<CudaEvent>());  // at the first use
    for (std::size_t i = 0; i < events.size(); ++i) events[i]->record(queues_[i]);
  }
  std::shared_ptr<std::byte> pinned(std::size_t bytes) override {
    select();
    void* memory = nullptr;
    check_cuda(cudaMallocHost(&memory, bytes), "pinned host memory for preconditioners");
    auto* const first = static_cast<std::byte*>(memory);
    std::fill_n(first, bytes, std::byte{0});
    return {first, [](std::byte* at) { cudaFreeHost(at); }};
  }
  void start_out(int copy, const std::byte* block, std::byte* host, std::size_t bytes) override {
    select();
    hold_out(block);
    start(copy, host, block, bytes, cudaMemcpyDeviceToHost, out_);
  }
  void start_in(int copy, const std::byte* host, std::byte* block, std::size_t bytes) override {
    select();
    start(copy, block, host, bytes, cudaMemcpyHostToDevice, in_);
  }
  void start_back(int copy, const std::byte* block, std::size_t bytes) override {
    select();
    hold_out(block);
    ask_for_pages(block, bytes, host_memory, out_);
    ends_[static_cast<std::size_t>(copy)].record(out_);
  }
  bool is_done(int copy) override { return ends_[static_cast<std::size_t>(copy)].done("copies of preconditioners"); }

 private:
  // Selects the device, since the thread that moves blocks is not the one that computes.
  void select() const { check_cuda(cudaSetDevice(device_), "choosing the device"); }
  // Makes what goes out wait for all work that may use the block.
  void hold_out(const std::byte* block) {
    for (const auto& use : blocks_.at(block).uses) use->hold(out_);
  }
  void start(int copy, std::byte* to, const std::byte* from, std::size_t bytes, cudaMemcpyKind kind,
             cudaStream_t stream) {
    if (bytes > 0) check_cuda(cudaMemcpyAsync(to, from, bytes, kind, stream), "copying preconditioners");
    ends_[static_cast<std::size_t>(copy)].record(stream);
  }

  int device_;
  DevicePages pages_;
  CudaStream in_, out_;
  std::array<CudaEvent, most_copies> ends_;
  std::vector<cudaStream_t> queues_;
  struct Block {
    bool unified = false;                          // in unified memory
    std::vector<std::unique_ptr<CudaEvent>> uses;  // events, one for each queue
  };
  std::map<const std::byte*, Block> blocks_;
};

}  // namespace

std::shared_ptr<std::byte> device_addresses(std::size_t bytes) {
  const std::size_t whole = whole_device_pages(std::max<std::size_t>(bytes, 1));
  CUdeviceptr at = 0;
  check_cuda(cudaFree(nullptr), "starting the device");  // the driver needs a context
  check_driver(cuMemAddressReserve(&at, whole, device_page, 0, 0), "addresses for preconditioners");
  return {reinterpret_cast<std::byte*>(at), [whole](std::byte* first) { cuMemAddressFree(address_of(first), whole); }};
}

std::shared_ptr<DeviceBlocks> make_device_blocks() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  return std::make_shared<CudaBlocks>(device);
}

}  // namespace sestina
