// Blocks of state in one scratch file on a fast disk, each at a fixed, aligned place. What the file holds is known only
// to the process that writes it: it dies with the run, and a checkpoint never needs it. No Kokkos.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/memory/block_store.hpp"
#include "io/store/chunk_file.hpp"

namespace sestina {

class BlockFile final : public BlockStore {
 public:
  struct Options {
    std::string path;        // of the file; its folder is made
    int queue_depth = 32;    // chunks under way at a time
    std::uint64_t most = 0;  // bytes of the file; 0: any
    bool direct = true;      // past the page cache, where the file system can
    bool ring = true;        // io_uring, where the system has it
    // Tests change what the engine gives.
    std::function<std::unique_ptr<ChunkEngine>(std::unique_ptr<ChunkEngine>)> wrap = {};
  };
  static constexpr std::size_t chunk_bytes = store_chunk_bytes;

  explicit BlockFile(const Options&);
  ~BlockFile() override;  // removes the file
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  std::size_t add(const std::string& name, std::size_t bytes) override;
  // Error(bad_deck): it takes more than `most`. Error(cannot_create): the folder or file cannot be made, another run
  // has it, or the disk has no room for it all.
  void open() override;
  void serve(Queue&) override;
  Traffic traffic() const override { return traffic_; }
  std::string describe() const override;
  void warn(const std::string& message) const override;

  std::uint64_t bytes() const { return size_; }  // of the file
  std::uint64_t offset(std::size_t block) const { return blocks_[block].offset; }
  std::uint64_t version(std::size_t block) const { return blocks_[block].version; }  // times it was written

 private:
  struct Block {
    std::string name;
    std::size_t bytes = 0;
    std::uint64_t offset = 0, version = 0;
    std::vector<std::uint64_t> digests;  // of its chunks, as last written
  };
  class Run;

  void create();
  void choose_engine();
  void forget(const Transfer&) const;  // in the page cache, where transfers go through it

  Options options_;
  std::vector<Block> blocks_;
  std::uint64_t size_ = 0;
  int file_ = -1;
  bool direct_ = true;
  ChunkMemory memory_;
  ChunkBuffers buffers_;
  std::unique_ptr<ChunkEngine> engine_;
  std::unique_ptr<Run> run_;
  Traffic traffic_;
};

}  // namespace sestina
