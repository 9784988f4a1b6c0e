#include "io/store/block_file.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/store/digest.hpp"

namespace sestina {

// A block whose last chunk has been prepared and the next block of its direction may both be on their way: so there are
// at most as many blocks as chunks, and in addition one of each direction that has no chunk.
BlockFile::Run::Run(BlockFile& file, std::size_t slots) : file_(file), slots_(slots), moving_(slots + 2) {
  for (std::size_t slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
  ready_.reserve(slots);
  come_.reserve(slots);
  over_.reserve(moving_.size());
}

// An engine that failed may still move what was given to it, so it is given nothing more.
void BlockFile::Run::serve(Queue& queue) {
  if (!broken_.empty()) throw Error(ExitCode::io_error, broken_);
  try {
    work(queue);
  } catch (const Error& error) {
    broken_ = error.what();
    throw;
  }
}

// The disk is kept busy first; buffers are filled and emptied, and digests taken, while it works.
void BlockFile::Run::work(Queue& queue) {
  ChunkEngine::Done done;
  while (true) {
    while (!over_.empty()) {
      const std::size_t last = over_.back();
      over_.pop_back();
      finish(queue, last);
    }
    submit_ready();
    if (take_ended()) continue;
    if (!come_.empty()) {
      const std::size_t slot = come_.back();
      come_.pop_back();
      read_done(slot);
    } else if (!prepare(queue) && over_.empty()) {
      if (under_way_ == 0 && ready_.empty()) return;
      if (under_way_ > 0 && file_.engine_->take(done, true)) ended(done);
    }
  }
}

void BlockFile::Run::submit_ready() {
  std::size_t count = 0;
  while (count < ready_.size() && under_way_ < file_.options_.queue_depth) submit(ready_[count++]);
  ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(count));
}

// Takes all that have ended, so that the next ones are sent together.
bool BlockFile::Run::take_ended() {
  ChunkEngine::Done done;
  bool any = false;
  while (file_.engine_->take(done, false)) {
    ended(done);
    any = true;
  }
  return any;
}

bool BlockFile::Run::prepare(Queue& queue) {
  if (free_.empty()) return false;
  for (const bool writes : {false, true})
    if (advance(queue, writes)) {
      prepare_chunk(current_[writes]);
      return true;
    }
  return false;
}

bool BlockFile::Run::advance(Queue& queue, bool writes) {
  while (true) {
    std::size_t& current = current_[writes];
    if (current != none) {
      const Moving& moving = moving_[current];
      if (moving.transfer->ok() && !moving.transfer->same &&
          moving.prepared < file_.blocks_[moving.transfer->block].digests.size())
        return true;
      if (moving.left == 0) over_.push_back(current);
      current = none;
      if (!over_.empty()) return false;  // there may be no room for another one
    }
    Transfer* const next = queue.next(writes);
    if (next == nullptr) return false;
    next->error.clear();
    next->moved = 0;
    const auto free = std::find_if(moving_.begin(), moving_.end(), [](const Moving& m) { return !m.transfer; });
    *free = {next, 0, 0};
    current = static_cast<std::size_t>(free - moving_.begin());
  }
}

void BlockFile::Run::prepare_chunk(std::size_t number) {
  Moving& moving = moving_[number];
  const std::size_t at = free_.back();
  free_.pop_back();
  Slot& slot = slots_[at];
  slot = Slot{};
  slot.moving = number;
  slot.chunk = moving.prepared++;
  ++moving.left;
  slot.bytes = std::min(chunk_bytes, block(slot).bytes - slot.chunk * chunk_bytes);
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory(slot)) % block_alignment == 0;
  if (aligned && slot.bytes % block_alignment == 0) slot.in_place = memory(slot);
  if (moving.transfer->writes && skips(at)) return release(at);
  make_ready(at);
}

void BlockFile::Run::make_ready(std::size_t at) {
  const bool writes = transfer(slots_[at]).writes;
  const auto place = writes ? ready_.end() : std::find_if(ready_.begin(), ready_.end(), [this](std::size_t other) {
    return transfer(slots_[other]).writes;
  });
  ready_.insert(place, at);
}

// Returns whether the file already has what is to be written: a preconditioner that was only read needs no writing.
// Copies what cannot be moved from where it lies.
bool BlockFile::Run::skips(std::size_t at) {
  const Slot& slot = slots_[at];
  Block& to = block(slot);
  const std::byte* from = memory(slot);
  const std::uint64_t digest = digest64(from, slot.bytes);
  if (to.version > 0 && digest == to.digests[slot.chunk]) {
    file_.traffic_.bytes_same += slot.bytes;
    return true;
  }
  to.digests[slot.chunk] = digest;
  if (slot.in_place != nullptr) return false;
  std::memcpy(buffer(at), from, slot.bytes);
  std::memset(buffer(at) + slot.bytes, 0, padded_to_blocks(slot.bytes) - slot.bytes);
  return false;
}

void BlockFile::Run::submit(std::size_t at) {
  const Slot& slot = slots_[at];
  file_.engine_->submit({static_cast<int>(at), transfer(slot).writes, place(slot) + slot.progress.moved,
                         slot.progress.moved, padded_to_blocks(slot.bytes) - slot.progress.moved, slot.in_place});
  ++under_way_;
}

void BlockFile::Run::ended(const ChunkEngine::Done& done) {
  --under_way_;
  const auto at = static_cast<std::size_t>(done.slot);
  Slot& slot = slots_[at];
  const bool writes = transfer(slot).writes;
  std::string why;
  switch (slot.progress.take(done.moved, padded_to_blocks(slot.bytes), why)) {
    case ChunkProgress::Next::failed:
      return give_up(at, ExitCode::io_error, why);
    case ChunkProgress::Next::more:
      return submit(at);
    case ChunkProgress::Next::done:
      break;
  }
  (writes ? file_.traffic_.bytes_written : file_.traffic_.bytes_read) += padded_to_blocks(slot.bytes);
  transfer(slot).moved += padded_to_blocks(slot.bytes);
  if (writes) return release(at);
  come_.push_back(at);
}

void BlockFile::Run::read_done(std::size_t at) {
  const Slot& slot = slots_[at];
  const std::byte* got = slot.in_place != nullptr ? slot.in_place : buffer(at);
  if (digest64(got, slot.bytes) != block(slot).digests[slot.chunk])
    return give_up(at, ExitCode::bad_data, "what was read is not what was written");
  if (slot.in_place == nullptr) std::memcpy(memory(slot), got, slot.bytes);
  release(at);
}

void BlockFile::Run::release(std::size_t at) {
  const std::size_t number = slots_[at].moving;
  free_.push_back(at);
  if (--moving_[number].left == 0 && number != current_[0] && number != current_[1]) over_.push_back(number);
}

void BlockFile::Run::finish(Queue& queue, std::size_t number) {
  Transfer& transfer = *std::exchange(moving_[number].transfer, nullptr);
  Block& block = file_.blocks_[transfer.block];
  if (transfer.same)
    file_.traffic_.bytes_same += block.bytes;
  else if (transfer.writes && transfer.ok())
    ++block.version;
  if (!file_.direct_) file_.forget(transfer);
  queue.ended(transfer);
}

// The file's contents are unknown for a block that could not be written, so its next write skips nothing.
void BlockFile::Run::give_up(std::size_t at, ExitCode code, const std::string& why) {
  const Slot& slot = slots_[at];
  Transfer& failed = transfer(slot);
  if (failed.ok()) {
    failed.error = fmt::format("{}: bytes {} to {} ({}): {}", file_.options_.path, place(slot),
                               place(slot) + slot.bytes, block(slot).name, why);
    failed.code = code;
  }
  if (failed.writes) block(slot).version = 0;
  release(at);
}

}  // namespace sestina
