// Staging memory of CUDA, and copies between the blocks of a message and contiguous memory. It exists in CUDA builds
// alone. No Kokkos.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "kernels/base/cuda_queue.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// Contiguous memory that only grows; what it held is lost when it does.
class Staging {
 public:
  enum class Place { device, pinned_host };
  explicit Staging(Place place) : place_(place) {}
  ~Staging() { release(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void reserve(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }
  char* data() const { return data_; }

 private:
  void release();
  Place place_;
  char* data_ = nullptr;
  std::size_t bytes_ = 0;
};

bool is_device_memory(const void*);
bool any_in_device_memory(const std::vector<Block>&);
bool all_in_device_memory(const std::vector<Block>&);

bool is_flat(const Block&);  // one stretch of bytes
std::vector<Block> without_empty(std::vector<Block>);
bool same_blocks(const std::vector<Block>&, const std::vector<Block>&);

// Copy blocks to and from contiguous memory, in the order of the bytes; either side may be the host's.
void pack(const std::vector<Block>& from, char* to, cudaStream_t);
void unpack(const char* from, const std::vector<Block>& to, cudaStream_t);

}  // namespace sestina
