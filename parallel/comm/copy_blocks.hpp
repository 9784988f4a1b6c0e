// Copies between lists of blocks that hold the same bytes in the same order but are cut differently. No Kokkos.
#pragma once
#include <cstring>
#include <vector>

#include "kernels/base/error.hpp"
#include "parallel/comm/communicator.hpp"

namespace sestina {

// Walks over the bytes of a list of blocks.
class BlockCursor {
 public:
  explicit BlockCursor(const std::vector<Block>& blocks) : blocks_(blocks) { skip_empty(); }
  bool at_end() const { return block_ == blocks_.size(); }
  std::size_t run() const { return blocks_[block_].row_bytes - byte_; }  // bytes that lie together from here
  char* here() const { return static_cast<char*>(blocks_[block_].data) + row_ * blocks_[block_].stride + byte_; }
  void advance(std::size_t bytes) {
    byte_ += bytes;
    if (byte_ < blocks_[block_].row_bytes) return;
    byte_ = 0;
    if (++row_ < blocks_[block_].rows) return;
    row_ = 0;
    ++block_;
    skip_empty();
  }

 private:
  void skip_empty() {
    while (block_ < blocks_.size() && blocks_[block_].bytes() == 0) ++block_;
  }
  const std::vector<Block>& blocks_;
  std::size_t block_ = 0, row_ = 0, byte_ = 0;
};

inline void copy_blocks(const std::vector<Block>& from, const std::vector<Block>& to) {
  BlockCursor source(from), target(to);
  while (!source.at_end() && !target.at_end()) {
    const std::size_t n = std::min(source.run(), target.run());
    std::memcpy(target.here(), source.here(), n);
    source.advance(n);
    target.advance(n);
  }
  SESTINA_REQUIRE(source.at_end() && target.at_end(), "blocks of different sizes");
}

}  // namespace sestina
