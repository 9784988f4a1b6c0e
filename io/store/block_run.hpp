// One batch of transfers of a BlockFile, chunk by chunk. No Kokkos.
#pragma once
#include "io/store/block_file.hpp"
#include "io/store/chunk_progress.hpp"

namespace sestina {

// A buffer and the chunk in it.
struct BlockFile::Slot {
  std::size_t transfer = 0, chunk = 0;
  std::size_t bytes = 0;          // of the block; the file's place has them padded
  std::byte* in_place = nullptr;  // where memory itself is moved, because it is aligned; else the slot's buffer
  ChunkProgress progress;
};

class BlockFile::Run {
 public:
  Run(BlockFile&, std::span<Transfer>);
  void finish();  // until all have ended

 private:
  void submit_ready();
  bool take_ended();              // some have
  bool prepare();                 // the next chunk into a free buffer; false: there is none, or no buffer
  void submit(std::size_t slot);  // what is left of its chunk
  void ended(const ChunkEngine::Done&);
  void read_done(std::size_t slot);
  bool skips(std::size_t slot);  // a chunk that the file has already
  void give_up(std::size_t slot, ExitCode, const std::string& why);
  std::uint64_t place(const Slot&) const;
  Block& block(const Slot& slot) { return file_.blocks_[transfers_[slot.transfer].block]; }
  std::byte* buffer(std::size_t slot) const { return file_.buffers_.data + slot * file_.buffers_.bytes; }
  std::byte* memory(const Slot& slot) const { return transfers_[slot.transfer].memory + slot.chunk * chunk_bytes; }

  BlockFile& file_;
  std::span<Transfer> transfers_;
  std::size_t transfer_ = 0, chunk_ = 0;          // the next one to prepare
  std::vector<std::size_t> free_, ready_, come_;  // slots: empty; to be submitted; read, to be emptied
  int under_way_ = 0;
};

}  // namespace sestina
