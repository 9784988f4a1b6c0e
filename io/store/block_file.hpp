// Blocks of state in one scratch file on a fast disk, each at a fixed, aligned place. What the file holds is known only
// to the process that writes it: it dies with the run, and a checkpoint never needs it. No Kokkos.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/memory/blocks.hpp"
#include "io/store/chunk_engine.hpp"

namespace sestina {

class BlockFile final : public BlockStore {
 public:
  struct Options {
    std::string path;        // path of the file, whose folder is made
    int queue_depth = 32;    // chunks under way at a time
    std::uint64_t most = 0;  // bytes of the file; 0: any
    bool direct = true;      // transfers go past the page cache, where the file system can
    bool ring = true;        // uses io_uring, where the system has it
    // Tests wrap the engine to change its results.
    std::function<std::unique_ptr<ChunkEngine>(std::unique_ptr<ChunkEngine>)> wrap = {};
  };
  static constexpr std::size_t chunk_bytes = store_chunk_bytes;

  explicit BlockFile(const Options&);
  ~BlockFile() override;  // removes the file
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  std::size_t add(const std::string& name, std::size_t bytes) override;
  // Throws Error(bad_deck) when the blocks take more than `most`; Error(cannot_create) when the folder or file cannot
  // be made, another run has it, or the disk has no room for all blocks.
  void open() override;
  void serve(Queue&) override;
  Traffic traffic() const override { return traffic_; }
  std::string describe() const override;
  void warn(const std::string& message) const override;

  std::uint64_t bytes() const { return size_; }  // those of the file
  std::uint64_t offset(std::size_t block) const { return blocks_[block].offset; }
  std::uint64_t version(std::size_t block) const { return blocks_[block].version; }  // how often it was written

 private:
  struct Block {
    std::string name;
    std::size_t bytes = 0;
    std::uint64_t offset = 0, version = 0;
    std::vector<std::uint64_t> digests;  // digests of its chunks, as last written
  };
  class Run;

  void create();
  void choose_engine();
  void forget(const Transfer&) const;  // takes it out of the page cache, where transfers go through it

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

// The transfers of a BlockFile that are under way, chunk by chunk.
class BlockFile::Run {
 public:
  Run(BlockFile&, std::size_t slots);
  void serve(Queue&);  // until all transfers have ended and none is left; allocates nothing

 private:
  // A block on its way, from its first chunk to its last.
  struct Moving {
    Transfer* transfer = nullptr;        // null: free
    std::size_t prepared = 0, left = 0;  // chunks: prepared so far; of those, not ended
  };
  // A buffer and the chunk in it.
  struct Slot {
    std::size_t moving = 0, chunk = 0;
    std::size_t bytes = 0;          // bytes of the block; their place in the file is padded
    std::byte* in_place = nullptr;  // aligned memory that is moved itself; null: the slot's buffer
    ChunkProgress progress;
  };

  void work(Queue&);
  void submit_ready();
  bool take_ended();                  // true when some have ended
  bool prepare(Queue&);               // puts the next chunk into a free buffer; false: no chunk, or no buffer
  bool advance(Queue&, bool writes);  // true when current_ of this direction has a chunk to prepare
  void prepare_chunk(std::size_t moving);
  void make_ready(std::size_t slot);  // puts it in line, reads before writes
  void submit(std::size_t slot);      // submits what is left of its chunk
  void ended(const ChunkEngine::Done&);
  void read_done(std::size_t slot);
  bool skips(std::size_t slot);  // true for a chunk that the file has already
  void release(std::size_t slot);
  void give_up(std::size_t slot, ExitCode, const std::string& why);
  void finish(Queue&, std::size_t moving);

  Transfer& transfer(const Slot& slot) const { return *moving_[slot.moving].transfer; }
  Block& block(const Slot& slot) const { return file_.blocks_[transfer(slot).block]; }
  std::uint64_t place(const Slot& slot) const { return block(slot).offset + slot.chunk * chunk_bytes; }
  std::byte* buffer(std::size_t slot) const { return file_.buffers_.data + slot * file_.buffers_.bytes; }
  std::byte* memory(const Slot& slot) const { return transfer(slot).memory + slot.chunk * chunk_bytes; }

  BlockFile& file_;
  std::vector<Slot> slots_;
  std::vector<Moving> moving_;
  std::vector<std::size_t> over_;                 // numbers in moving_ of blocks whose chunks have all ended
  std::vector<std::size_t> free_, ready_, come_;  // slots: empty; to be submitted; read, to be emptied
  static constexpr std::size_t none = ~std::size_t{0};
  std::size_t current_[2] = {none, none};  // numbers in moving_ of the blocks being read and written
  int under_way_ = 0;
  std::string broken_;  // the reason why the engine can no longer be used
};

}  // namespace sestina
