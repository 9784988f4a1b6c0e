#include <utility>

#include "core/memory/pager.hpp"

namespace sestina {

using enum BlockEvent;

BlockStore::Transfer* Pager::next(bool writes) {
  const Lock lock(mutex_);
  Block* const block = take(writes);
  if (block == nullptr) return nullptr;
  back(*block);
  return &block->transfer;
}

// Takes the next transfer; a block to be written that is in use again by now is left out.
Pager::Block* Pager::take(bool writes) {
  std::vector<std::size_t>& asked = writes ? writes_ : reads_;
  while (!asked.empty()) {
    const std::size_t i = asked.front();
    Block& block = blocks_[i];
    asked.erase(asked.begin());
    if (writes) block.queued = false;
    if (writes && block.tier.state() != BlockState::dirty) {
      leaving_ -= whole(block.bytes);
      continue;
    }
    if (writes) block.tier.apply(write);
    block.moving = true;
    block.transfer.block = i;
    block.transfer.memory = block.memory.get();
    block.transfer.writes = writes;
    block.transfer.same = writes && !block.tier.changed();
    block.transfer.error.clear();
    block.transfer.moved = 0;
    if (recording_) block.began = Clock::now();
    return &block;
  }
  return nullptr;
}

void Pager::move_blocks() {
  Lock lock(mutex_);
  while (true) {
    for_mover_.wait(lock, [this] { return stopping_ || !reads_.empty() || !writes_.empty(); });
    if (stopping_) return;
    moving_ = true;
    lock.unlock();
    try {
      store_->serve(*this);
      lock.lock();
    } catch (const Error& error) {
      lock.lock();
      fail_all(lock, error);
    }
    moving_ = false;
    for_users_.notify_all();
  }
}

void Pager::fail_all(Lock& lock, const Error& error) {
  while (take(false) != nullptr || take(true) != nullptr) {
  }
  for (Block& block : blocks_)
    if (block.moving) {
      block.transfer.error = error.what();
      block.transfer.code = error.code();
      finish_transfer(lock, block.transfer);
    }
}

void Pager::ended(BlockStore::Transfer& transfer) {
  if (transfer.writes == transfer.ok())  // nobody touches a block that is being written, or that was not read
    drop(blocks_[transfer.block]);
  Lock lock(mutex_);
  finish_transfer(lock, transfer);
  read_ahead();
  for_users_.notify_all();
}

void Pager::note(Event::Kind kind, const Block& block, std::uint64_t bytes, Clock::time_point begin) {
  if (!recording_) return;
  const bool out = kind == Event::Kind::write;
  if (out && bytes == 0) return;  // the store has the same
  const char* const above = options_.memory;
  const char* const below = store_->tier(static_cast<std::size_t>(&block - blocks_.data()));
  events_.push_back({kind, block.name.c_str(), out ? above : below, out ? below : above, bytes, begin, Clock::now()});
}

void Pager::finish_transfer(Lock&, BlockStore::Transfer& transfer) {
  Block& block = blocks_[transfer.block];
  const std::size_t bytes = whole(block.bytes);
  (transfer.writes ? counts_.bytes_written : counts_.bytes_read) += transfer.moved;
  note(transfer.writes ? Event::Kind::write : Event::Kind::read, block, transfer.moved, block.began);
  block.moving = false;
  block.error = transfer.error;
  block.code = transfer.code;
  if (!transfer.writes) {
    block.tier.apply(transfer.ok() ? arrived : failed);
    if (!transfer.ok()) in_memory_ -= bytes;
    return;
  }
  leaving_ -= bytes;
  block.tier.apply(transfer.ok() ? written : failed);
  if (transfer.ok()) in_memory_ -= bytes;
  if (transfer.ok() || counts_.abandoned) return;
  counts_.abandoned = true;
  store_->warn(transfer.error + "; optimizer state stays in memory from now on");
}

}  // namespace sestina
