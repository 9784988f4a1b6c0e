#include "io/store/block_run.hpp"

#include <algorithm>
#include <cstring>

#include "io/store/digest.hpp"

namespace sestina {

BlockFile::Run::Run(BlockFile& file, std::span<Transfer> transfers) : file_(file), transfers_(transfers) {
  for (std::size_t slot = file.slots_.size(); slot > 0; --slot) free_.push_back(slot - 1);
  for (Transfer& transfer : transfers_) transfer.error.clear();
}

// The disk is kept busy first; buffers are filled and emptied, and digests taken, while it works.
void BlockFile::Run::finish() {
  ChunkEngine::Done done;
  while (true) {
    submit_ready();
    if (take_ended()) continue;
    if (!come_.empty()) {
      const std::size_t slot = come_.back();
      come_.pop_back();
      read_done(slot);
    } else if (!prepare()) {
      if (under_way_ == 0 && ready_.empty()) return;
      if (under_way_ > 0 && file_.engine_->take(done, true)) ended(done);
    }
  }
}

void BlockFile::Run::submit_ready() {
  std::size_t count = 0;
  while (count < ready_.size() && under_way_ < file_.setting_.queue_depth) submit(ready_[count++]);
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
}

// All that have ended, so that the next ones are sent together.
bool BlockFile::Run::take_ended() {
  ChunkEngine::Done done;
  bool any = false;
  while (file_.engine_->take(done, false)) {
    ended(done);
    any = true;
  }
  return any;
}

std::uint64_t BlockFile::Run::place(const Slot& slot) const {
  return file_.blocks_[transfers_[slot.transfer].block].offset + slot.chunk * chunk_bytes;
}

bool BlockFile::Run::prepare() {
  while (transfer_ < transfers_.size() &&
         (!transfers_[transfer_].ok() || chunk_ == file_.blocks_[transfers_[transfer_].block].digests.size())) {
    ++transfer_;
    chunk_ = 0;
  }
  if (transfer_ == transfers_.size() || free_.empty()) return false;
  const std::size_t number = free_.back();
  free_.pop_back();
  const Transfer& transfer = transfers_[transfer_];
  Slot& slot = file_.slots_[number];
  slot = Slot{};
  slot.transfer = transfer_;
  slot.chunk = chunk_;
  slot.bytes = std::min(chunk_bytes, block(slot).bytes - chunk_ * chunk_bytes);
  ++chunk_;
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory(slot)) % block_alignment == 0;
  if (aligned && slot.bytes % block_alignment == 0) slot.in_place = memory(slot);
  if (transfer.writes && skips(number)) {
    free_.push_back(number);
    return true;
  }
  ready_.push_back(number);
  return true;
}

// Looks whether what is to be written is what the file has: a preconditioner that was only read needs no writing.
// Copies what cannot be moved from where it lies.
bool BlockFile::Run::skips(std::size_t number) {
  const Slot& slot = file_.slots_[number];
  Block& to = block(slot);
  const std::byte* from = memory(slot);
  const std::uint64_t digest = digest64(from, slot.bytes);
  if (to.version > 0 && digest == to.digests[slot.chunk]) {
    file_.traffic_.bytes_same += slot.bytes;
    return true;
  }
  to.digests[slot.chunk] = digest;
  if (slot.in_place != nullptr) return false;
  std::memcpy(buffer(number), from, slot.bytes);
  std::memset(buffer(number) + slot.bytes, 0, padded_to_blocks(slot.bytes) - slot.bytes);
  return false;
}

void BlockFile::Run::submit(std::size_t number) {
  const Slot& slot = file_.slots_[number];
  const bool writes = transfers_[slot.transfer].writes;
  file_.engine_->submit({static_cast<int>(number), writes, place(slot) + slot.progress.moved, slot.progress.moved,
                         padded_to_blocks(slot.bytes) - slot.progress.moved, slot.in_place});
  ++under_way_;
}

void BlockFile::Run::ended(const ChunkEngine::Done& done) {
  --under_way_;
  const auto number = static_cast<std::size_t>(done.slot);
  Slot& slot = file_.slots_[number];
  const bool writes = transfers_[slot.transfer].writes;
  std::string why;
  switch (slot.progress.take(done.moved, padded_to_blocks(slot.bytes), why)) {
    case ChunkProgress::Next::failed:
      return give_up(number, ExitCode::io_error, why);
    case ChunkProgress::Next::more:
      return submit(number);
    case ChunkProgress::Next::done:
      break;
  }
  (writes ? file_.traffic_.bytes_written : file_.traffic_.bytes_read) += padded_to_blocks(slot.bytes);
  (writes ? free_ : come_).push_back(number);
}

void BlockFile::Run::read_done(std::size_t number) {
  const Slot& slot = file_.slots_[number];
  const std::byte* got = slot.in_place != nullptr ? slot.in_place : buffer(number);
  if (digest64(got, slot.bytes) != block(slot).digests[slot.chunk])
    return give_up(number, ExitCode::bad_data, "what was read is not what was written");
  if (slot.in_place == nullptr) std::memcpy(memory(slot), got, slot.bytes);
  free_.push_back(number);
}

// What the file holds of a block that could not be written is unknown, so that its next write skips nothing.
void BlockFile::Run::give_up(std::size_t number, ExitCode code, const std::string& why) {
  const Slot& slot = file_.slots_[number];
  Transfer& transfer = transfers_[slot.transfer];
  if (transfer.ok()) {
    transfer.error = fmt::format("{}: bytes {} to {} ({}): {}", file_.setting_.path, place(slot),
                                 place(slot) + slot.bytes, block(slot).name, why);
    transfer.code = code;
  }
  if (transfer.writes) block(slot).version = 0;
  free_.push_back(number);
}

}  // namespace sestina
