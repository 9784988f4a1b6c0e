#include <algorithm>

#include "kernels/base/error.hpp"
#include "parallel/comm/device_copies.hpp"

namespace sestina {
namespace {

void copy_rows(void* to, std::size_t to_stride, const void* from, std::size_t from_stride, const Block& shape,
               cudaStream_t stream) {
  const bool flat = is_flat(shape);  // a flat copy has any length: strides of 2-D copies end at 2 GiB
  check_cuda(flat ? cudaMemcpyAsync(to, from, shape.bytes(), cudaMemcpyDefault, stream)
                  : cudaMemcpy2DAsync(to, to_stride, from, from_stride, shape.row_bytes, shape.rows, cudaMemcpyDefault,
                                      stream),
             "copying a message");
}

}  // namespace

void Staging::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return;
  release();
  void* data = nullptr;
  if (place_ == Place::device)
    check_cuda(cudaMalloc(&data, bytes), "memory for messages");
  else
    check_cuda(cudaMallocHost(&data, bytes), "pinned host memory for messages");
  data_ = static_cast<char*>(data);
  bytes_ = bytes;
}

void Staging::release() {
  if (place_ == Place::device)
    cudaFree(data_);
  else
    cudaFreeHost(data_);
  data_ = nullptr;
  bytes_ = 0;
}

bool is_device_memory(const void* data) {
  cudaPointerAttributes attributes = {};
  check_cuda(cudaPointerGetAttributes(&attributes, data), "asking where memory lies");
  return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
}

bool is_flat(const Block& block) { return block.rows == 1 || block.stride == block.row_bytes; }

bool any_in_device_memory(const std::vector<Block>& blocks) {
  return std::any_of(blocks.begin(), blocks.end(), [](const Block& block) { return is_device_memory(block.data); });
}

bool all_in_device_memory(const std::vector<Block>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [](const Block& block) { return is_device_memory(block.data); });
}

std::vector<Block> without_empty(std::vector<Block> blocks) {
  std::erase_if(blocks, [](const Block& block) { return block.bytes() == 0; });
  return blocks;
}

bool same_blocks(const std::vector<Block>& a, const std::vector<Block>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Block& x, const Block& y) {
    return x.data == y.data && x.rows == y.rows && x.row_bytes == y.row_bytes && x.stride == y.stride;
  });
}

void pack(const std::vector<Block>& from, char* to, cudaStream_t stream) {
  for (const Block& block : from) {
    copy_rows(to, block.row_bytes, block.data, block.stride, block, stream);
    to += block.bytes();
  }
}

void unpack(const char* from, const std::vector<Block>& to, cudaStream_t stream) {
  for (const Block& block : to) {
    copy_rows(block.data, block.stride, from, block.row_bytes, block, stream);
    from += block.bytes();
  }
}

}  // namespace sestina
