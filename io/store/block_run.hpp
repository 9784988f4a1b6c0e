// The transfers of a BlockFile that are under way, chunk by chunk. No Kokkos.
#pragma once
#include "io/store/block_file.hpp"
#include "io/store/chunk_progress.hpp"

namespace sestina {

class BlockFile::Run {
 public:
  Run(BlockFile&, std::size_t slots);
  void serve(Queue&);  // until all have ended and there are no more; allocates nothing

 private:
  // A block on its way, from its first chunk to its last.
  struct Moving {
    Transfer* transfer = nullptr;        // null: free
    std::size_t prepared = 0, left = 0;  // chunks: taken in hand so far; of those, not ended
  };
  // A buffer and the chunk in it.
  struct Slot {
    std::size_t moving = 0, chunk = 0;
    std::size_t bytes = 0;          // of the block; the file's place has them padded
    std::byte* in_place = nullptr;  // where memory itself is moved, because it is aligned; else the slot's buffer
    ChunkProgress progress;
  };

  void work(Queue&);
  void submit_ready();
  bool take_ended();                  // some have
  bool prepare(Queue&);               // the next chunk into a free buffer; false: there is none, or no buffer
  bool advance(Queue&, bool writes);  // current_ of this direction has a chunk to prepare
  void prepare_chunk(std::size_t moving);
  void make_ready(std::size_t slot);  // reads before writes
  void submit(std::size_t slot);      // what is left of its chunk
  void ended(const ChunkEngine::Done&);
  void read_done(std::size_t slot);
  bool skips(std::size_t slot);  // a chunk that the file has already
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
  std::vector<std::size_t> over_;                 // of moving_: all chunks have ended
  std::vector<std::size_t> free_, ready_, come_;  // slots: empty; to be submitted; read, to be emptied
  static constexpr std::size_t none = ~std::size_t{0};
  std::size_t current_[2] = {none, none};  // of moving_, that chunks are taken from: read, written
  int under_way_ = 0;
  std::string broken_;  // why the engine can no longer be used
};

}  // namespace sestina
