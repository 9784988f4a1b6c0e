#include "core/layout/pager.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "kernels/base/quiet_threads.hpp"

namespace sestina {

using enum BlockEvent;

constexpr std::size_t huge_page = std::size_t{2} << 20;

std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// Pages of 2 MiB, as far as they lie inside: a transfer past the page cache is in one piece instead of one for each 4
// KiB, which decides how fast some disks are. What is left stays in small pages, so that no block takes more memory
// than its own.
std::shared_ptr<std::byte> page_memory(std::size_t bytes) {
  const std::size_t size = std::max(whole_pages(bytes), whole_pages(1));
  const std::size_t mapped = size < huge_page ? size : size + huge_page;
  void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail(ExitCode::unavailable, "no {} bytes of addresses: {}", mapped, std::strerror(errno));
  const auto unmap = [memory, mapped](std::byte*) { ::munmap(memory, mapped); };
  if (size < huge_page) return {static_cast<std::byte*>(memory), unmap};
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + huge_page - 1) / huge_page * huge_page;
  auto* const aligned = reinterpret_cast<std::byte*>(begin);
  ::madvise(aligned, size / huge_page * huge_page, MADV_HUGEPAGE);  // a wish
  return {aligned, unmap};
}

Pager::Pager(std::shared_ptr<BlockStore> store, const Setting& setting) : store_(std::move(store)), setting_(setting) {}

bool Pager::detach() {
  bool rests = true;
  try {
    settle();
  } catch (const Error&) {
    rests = false;
  }
  if (--owners_ > 0 || !started_) return rests;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for_mover_.notify_all();
  }
  if (rests)
    mover_.join();
  else
    mover_.detach();
  return rests;
}

void Pager::add(const std::string& name, std::byte* memory, std::size_t bytes) {
  SESTINA_REQUIRE(!started_, "{} comes too late", name);
  if (bytes == 0) return;
  Block block;
  block.name = name;
  block.memory = memory;
  block.bytes = bytes;
  blocks_.push_back(std::move(block));
  bytes_ += whole_pages(bytes);
}

void Pager::need(std::size_t updates, std::size_t jobs) {
  updates_ = std::max(updates_, updates);
  jobs_ += jobs;
}

void Pager::open() {
  limit_ = std::max(setting_.most, working());
  if (setting_.most != 0 && setting_.most < working())
    fail(ExitCode::bad_deck,
         "optimizer.refresh.host_bytes: {} bytes are too few: updates have {} bytes of preconditioners in memory at a "
         "time and refreshes {}; at least {}, or 0",
         setting_.most, updates_, jobs_, working());
  if (blocks_.empty()) return;
  keep_ = limit_ - working();
  std::sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.memory < b.memory; });
  for (const Block& block : blocks_) store_->add(block.name, block.bytes);
  store_->open();
  reads_.reserve(blocks_.size());
  writes_.reserve(blocks_.size());
  line_.reserve(blocks_.size());
  started_ = true;
  mover_ = quiet_thread([self = shared_from_this()] { self->move_blocks(); });
  const std::lock_guard lock(mutex_);
  in_memory_ = bytes_;
  for (Block& block : blocks_) leave(block);
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

void Pager::wait(Lock& lock, const std::string& name) {
  if (for_users_.wait_for(lock, std::chrono::duration<double>(setting_.timeout)) == std::cv_status::timeout && moving_)
    fail(ExitCode::io_error, "{}: waited {:g} s for its transfer (run.abort_timeout): the disk hangs", name,
         setting_.timeout);
}

void Pager::came(std::size_t bytes) {
  in_memory_ += bytes;
  if (counts_.largest != 0) counts_.largest = std::max(counts_.largest, in_memory_);
}

// Blocks that are going make room, or else one that was wanted and not used, the last in turn. Where there are none
// either, the caller's own share of the limit is free.
void Pager::make_room(Lock& lock, const Block& block) {
  while (in_memory_ + whole_pages(block.bytes) > limit_) {
    Block* last = nullptr;
    for (Block& other : blocks_)
      if (other.tier.state() == BlockState::clean && !other.kept && (!last || other.turn > last->turn)) last = &other;
    if (leaving_ == 0 && last != nullptr) leave(*last);
    if (leaving_ == 0) return;
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
    if (need == Need::room && block.tier.state() == BlockState::on_nvme) {
      make_room(lock, block);
      if (block.tier.state() != BlockState::on_nvme) continue;
      came(whole_pages(block.bytes));
      return block.tier.apply(claim);
    }
    if (block.tier.allows(use)) return block.tier.apply(use);
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
  block->tier.apply(release);
  if (block->tier.state() == BlockState::ready) leave(*block);
}

void Pager::want(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (block->tier.state() == BlockState::on_nvme && in_memory_ + whole_pages(block->bytes) <= limit_) ask(*block);
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
    if (block.wanted && state == BlockState::on_nvme) {
      if (in_memory_ + whole_pages(block.bytes) > limit_ - jobs_) break;
      ask(block);
    }
    block.in_line = block.wanted = false;
  }
  line_.erase(line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(seen));
}

void Pager::ask(Block& block) {
  block.error.clear();
  block.tier.apply(read);
  came(whole_pages(block.bytes));
  reads_.push_back(static_cast<std::size_t>(&block - blocks_.data()));
  for_mover_.notify_one();
}

// Matrices are used in turn, so that no block is better kept than another: the first ones that there is room for.
void Pager::leave(Block& block) {
  const std::size_t bytes = whole_pages(block.bytes);
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

// Of blocks to go those that nobody uses again by now.
BlockStore::Transfer* Pager::next(bool writes) {
  const Lock lock(mutex_);
  std::vector<std::size_t>& asked = writes ? writes_ : reads_;
  while (!asked.empty()) {
    const std::size_t i = asked.front();
    asked.erase(asked.begin());
    if (!writes) return start(i, false);
    blocks_[i].queued = false;
    if (blocks_[i].tier.state() == BlockState::dirty) {
      blocks_[i].tier.apply(write);
      return start(i, true);
    }
    leaving_ -= whole_pages(blocks_[i].bytes);
  }
  return nullptr;
}

BlockStore::Transfer* Pager::start(std::size_t i, bool writes) {
  Block& block = blocks_[i];
  block.moving = true;
  block.transfer.block = i;
  block.transfer.memory = block.memory;
  block.transfer.writes = writes;
  block.transfer.error.clear();
  return &block.transfer;
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
  lock.unlock();
  while (next(false) != nullptr || next(true) != nullptr) {
  }
  lock.lock();
  for (Block& block : blocks_)
    if (block.moving) {
      block.transfer.error = error.what();
      block.transfer.code = error.code();
      settle_transfer(lock, block.transfer);
    }
}

void Pager::ended(BlockStore::Transfer& transfer) {
  if (transfer.writes == transfer.ok())  // nobody touches what is being written, or was not read
    ::madvise(transfer.memory, whole_pages(blocks_[transfer.block].bytes), MADV_DONTNEED);
  Lock lock(mutex_);
  counts_.traffic = store_->traffic();
  settle_transfer(lock, transfer);
  read_ahead();
  for_users_.notify_all();
}

void Pager::settle_transfer(Lock&, BlockStore::Transfer& transfer) {
  Block& block = blocks_[transfer.block];
  const std::size_t bytes = whole_pages(block.bytes);
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
  if (counts_.largest == 0 && leaving_ == 0) counts_.largest = std::max<std::size_t>(in_memory_, 1);
  if (transfer.ok() || counts_.abandoned) return;
  counts_.abandoned = true;
  store_->warn(transfer.error + "; preconditioners stay in host memory from now on");
}

void Pager::settle() {
  Lock lock(mutex_);
  while (started_ && (moving_ || !reads_.empty() || !writes_.empty())) wait(lock, "all state");
}

Pager::Counts Pager::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.in_memory = in_memory_;
  return counts;
}

}  // namespace sestina
