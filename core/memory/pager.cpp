#include "core/memory/pager.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/base/threads.hpp"

namespace sestina {

using enum BlockEvent;

Pager::Pager(std::shared_ptr<BlockStore> store, const Options& options, std::shared_ptr<BlockMemory> memory)
    : store_(std::move(store)), memory_(std::move(memory)), options_(options) {}

bool Pager::detach() {
  bool rests = true;
  try {
    wait_idle();
  } catch (const Error&) {
    rests = false;
  }
  if (--owners_ > 0 || !started_) return rests;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for_mover_.notify_all();
  }
  if (!rests) {
    mover_.detach();
    return false;
  }
  mover_.join();
  for (Block& block : blocks_) drop(block);
  return true;
}

void Pager::add(const std::string& name, std::byte* memory, std::size_t bytes) {
  SESTINA_REQUIRE(!started_, "{} comes too late", name);
  if (bytes == 0) return;
  Block block;
  block.name = name;
  block.memory = memory;
  block.bytes = bytes;
  blocks_.push_back(std::move(block));
  memory_->add(memory);
  bytes_ += whole(bytes);
}

void Pager::need(std::size_t updates, std::size_t jobs) {
  updates_ = std::max(updates_, updates);
  jobs_ = std::max(jobs_, jobs);
}

void Pager::open() {
  limit_ = std::max(options_.most, working());
  if (options_.most != 0 && options_.most < working())
    fail(ExitCode::bad_deck,
         "{}: {} bytes are too few: updates have {} bytes of optimizer state in memory at a time and refreshes {}; at "
         "least {}, or 0",
         options_.key, options_.most, updates_, jobs_, working());
  if (blocks_.empty()) return;
  keep_ = limit_ - working();
  std::sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.memory < b.memory; });
  for (const Block& block : blocks_) store_->add(block.name, block.bytes);
  store_->open();
  reads_.reserve(blocks_.size());
  writes_.reserve(blocks_.size());
  line_.reserve(blocks_.size());
  for (Block& block : blocks_)
    for (const BlockEvent gone : {evict, write, written}) block.tier.apply(gone);  // nobody has written it yet
  memory_->keep(limit_);
  started_ = true;
  mover_ = quiet_thread([self = shared_from_this()] { self->move_blocks(); });
}

Pager::Block* Pager::find(const void* memory) {
  if (!started_) return nullptr;
  const auto* at = static_cast<const std::byte*>(memory);
  const auto next = std::upper_bound(blocks_.begin(), blocks_.end(), at,
                                     [](const std::byte* x, const Block& block) { return x < block.memory; });
  if (next == blocks_.begin()) return nullptr;
  Block& block = *std::prev(next);
  return at < block.memory + block.bytes ? &block : nullptr;
}

std::span<const std::byte> Pager::block_of(const void* memory) const {
  const Block* const block = find(memory);
  if (block == nullptr) return {};
  return {block->memory, block->bytes};
}

bool Pager::is_beyond_memory(const void* memory) {
  const Block* const block = find(memory);
  return block != nullptr && !store_->is_in_memory(static_cast<std::size_t>(block - blocks_.data()));
}

// Gives memory to a block; one that nobody has written is zeros.
void Pager::back(Block& block) {
  if (block.has_memory) return;
  memory_->come(block.memory, block.bytes, !block.was_used);
  block.has_memory = block.was_used = true;
}

void Pager::drop(Block& block) {
  if (std::exchange(block.has_memory, false)) memory_->go(block.memory, block.bytes);
}

void Pager::wait(Lock& lock, const std::string& name) {
  if (for_users_.wait_for(lock, std::chrono::duration<double>(options_.timeout)) == std::cv_status::timeout && moving_)
    fail(ExitCode::io_error, "{}: waited {:g} s for its transfer (run.abort_timeout): the disk hangs", name,
         options_.timeout);
}

void Pager::came(std::size_t bytes) {
  in_memory_ += bytes;
  counts_.largest = std::max(counts_.largest, in_memory_);
}

// Waits for memory: blocks that are going make room, or else one that was wanted and not used, the last in turn, once
// it has come. Where there are none either, the caller's own share of the limit is free.
void Pager::make_room(Lock& lock, const Block& block) {
  while (in_memory_ + whole(block.bytes) > limit_) {
    Block* last = nullptr;
    bool coming = false;
    for (Block& other : blocks_) {
      coming = coming || other.tier.state() == BlockState::reading;
      if (other.tier.state() == BlockState::clean && !other.kept && (!last || other.turn > last->turn)) last = &other;
    }
    if (leaving_ == 0 && last != nullptr) leave(*last);
    if (leaving_ == 0 && !coming) return;
    wait(lock, block.name);
  }
}

void Pager::pin(const void* memory, Need need) {
  Block* const found = find(memory);
  if (found == nullptr) return;
  Block& block = *found;
  Lock lock(mutex_);
  ++counts_.pins;
  block.wanted = false;
  for (bool asked = false, missed = false;;) {
    if ((need == Need::room || !block.was_used) && block.tier.state() == BlockState::on_nvme) {
      make_room(lock, block);
      if (block.tier.state() != BlockState::on_nvme) continue;
      back(block);
      came(whole(block.bytes));
      return block.tier.apply(claim);
    }
    const BlockEvent begin = need == Need::reading ? look : use;
    if (block.tier.allows(begin)) {
      back(block);
      return block.tier.apply(begin);
    }
    if (!missed) ++counts_.misses;
    missed = true;
    if (block.tier.state() == BlockState::on_nvme) {
      if (asked && !block.error.empty()) throw Error(block.code, block.error);
      make_room(lock, block);
      if (block.tier.state() != BlockState::on_nvme) continue;
      ask(block);
      asked = true;
    }
    wait(lock, block.name);
  }
}

void Pager::unpin(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  memory_->used(block->memory);
  block->tier.apply(release);
  if (block->tier.state() == BlockState::ready) leave(*block);
}

void Pager::want(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (block->was_used && block->tier.state() == BlockState::on_nvme && in_memory_ + whole(block->bytes) <= limit_)
    ask(*block);
}

void Pager::want_in_turn(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  block->wanted = true;
  block->turn = ++turns_;
  if (!std::exchange(block->in_line, true)) line_.push_back(static_cast<std::size_t>(block - blocks_.data()));
  read_ahead();
}

void Pager::read_ahead() {
  std::size_t seen = 0;
  for (; seen < line_.size(); ++seen) {
    Block& block = blocks_[line_[seen]];
    const BlockState state = block.tier.state();
    if (block.wanted && (state == BlockState::dirty || state == BlockState::writing)) break;  // it is on its way out
    if (block.wanted && block.was_used && state == BlockState::on_nvme) {
      if (in_memory_ + whole(block.bytes) > limit_ - jobs_) break;
      ask(block);
    }
    block.in_line = block.wanted = false;
  }
  line_.erase(line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(seen));
}

void Pager::ask(Block& block) {
  block.error.clear();
  block.tier.apply(read);
  came(whole(block.bytes));
  reads_.push_back(static_cast<std::size_t>(&block - blocks_.data()));
  for_mover_.notify_one();
}

// Keeps the first blocks that there is room for: matrices are used in turn, so that no block is better kept than
// another.
void Pager::leave(Block& block) {
  const std::size_t bytes = whole(block.bytes);
  if (!block.kept && kept_ + bytes <= keep_) {
    block.kept = true;
    kept_ += bytes;
  }
  if (block.kept || counts_.abandoned) return;
  block.tier.apply(evict);
  if (block.queued) return;
  block.queued = true;
  leaving_ += bytes;
  writes_.push_back(static_cast<std::size_t>(&block - blocks_.data()));
  for_mover_.notify_one();
}

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
    block.transfer.memory = block.memory;
    block.transfer.writes = writes;
    block.transfer.same = writes && !block.tier.changed();
    block.transfer.error.clear();
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
  counts_.traffic = store_->traffic();
  finish_transfer(lock, transfer);
  read_ahead();
  for_users_.notify_all();
}

void Pager::finish_transfer(Lock&, BlockStore::Transfer& transfer) {
  Block& block = blocks_[transfer.block];
  const std::size_t bytes = whole(block.bytes);
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

void Pager::wait_idle() {
  Lock lock(mutex_);
  while (started_ && (moving_ || !reads_.empty() || !writes_.empty())) wait(lock, "all state");
}

Pager::Counts Pager::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.in_memory = in_memory_;
  return counts;
}

PinAll::PinAll(Pager* pager, const void* memory, std::size_t bytes, Pager::Need need)
    : pager_(memory == nullptr ? nullptr : pager), begin_(static_cast<const std::byte*>(memory)), end_(begin_) {
  if (pager_ == nullptr) return;
  try {
    do {
      const std::span<const std::byte> block = pager_->block_of(end_);
      if (block.empty()) break;
      const std::byte* const last = block.data() + block.size();
      const bool whole = bytes == 0 || (begin_ <= block.data() && last <= begin_ + bytes);
      pager_->pin(end_, need == Pager::Need::room && !whole ? Pager::Need::contents : need);
      end_ = last;
    } while (end_ < begin_ + bytes);
  } catch (...) {
    let_go();
    throw;
  }
}

void PinAll::let_go() {
  if (pager_ == nullptr) return;
  while (begin_ < end_) {
    const std::span<const std::byte> block = pager_->block_of(begin_);
    pager_->unpin(begin_);
    begin_ = block.data() + block.size();
  }
}

InUse::InUse(Pages& pages) : pages_(pages) {
  for (const Page& page : pages_)
    if (page.in_updates()) page.pager->want(page.memory.get());  // at the same time
  try {
    for (; held_ < pages_.size(); ++held_) {
      Page& page = pages_[held_];
      if (!page.in_updates()) continue;
      const bool writes = page.use == FieldUse::update || page.use == FieldUse::moment;
      page.pager->pin(page.memory.get(), writes ? Pager::Need::contents : Pager::Need::reading);
      page.written = writes;
    }
  } catch (...) {
    let_go();
    throw;
  }
}

InUse::~InUse() {
  let_go();
  for (const Page& page : pages_)
    if (page.in_updates()) page.pager->want_in_turn(page.memory.get());  // in the next update, after all others
}

void InUse::let_go() {
  while (held_ > 0) {
    Page& page = pages_[--held_];
    if (!page.in_updates()) continue;
    page.written = false;
    page.pager->unpin(page.memory.get());
  }
}

}  // namespace sestina
