#include "core/memory/pager.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/memory/unified_memory.hpp"
#include "kernels/base/threads.hpp"

namespace sestina {

using enum BlockEvent;

std::shared_ptr<std::byte> block_memory(MemorySpace space, Tier tier, std::size_t bytes) {
  if (space == MemorySpace::host) return page_memory(bytes);
  return tier == Tier::unified ? unified_memory(bytes) : device_addresses(bytes);
}

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

void Pager::add(const std::string& name, std::shared_ptr<std::byte> memory, std::size_t bytes, bool seldom) {
  SESTINA_REQUIRE(!started_, "{} comes too late", name);
  if (bytes == 0) return;
  Block block;
  block.name = name;
  block.memory = std::move(memory);
  block.bytes = bytes;
  block.seldom = seldom;
  block.place = blocks_.size();
  memory_->add(block.memory);
  blocks_.push_back(std::move(block));
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
  choose_kept();
  std::sort(blocks_.begin(), blocks_.end(),
            [](const Block& a, const Block& b) { return a.memory.get() < b.memory.get(); });
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
                                     [](const std::byte* x, const Block& block) { return x < block.memory.get(); });
  if (next == blocks_.begin()) return nullptr;
  Block& block = *std::prev(next);
  return at < block.memory.get() + block.bytes ? &block : nullptr;
}

std::span<const std::byte> Pager::block_of(const void* memory) const {
  const Block* const block = find(memory);
  if (block == nullptr) return {};
  return {block->memory.get(), block->bytes};
}

bool Pager::is_beyond_memory(const void* memory) {
  const Block* const block = find(memory);
  return block != nullptr && !store_->is_in_memory(static_cast<std::size_t>(block - blocks_.data()));
}

// Gives memory to a block; one that nobody has written is zeros.
void Pager::back(Block& block) {
  if (block.has_memory) return;
  memory_->come(block.memory.get(), block.bytes, !block.was_used);
  block.has_memory = block.was_used = true;
}

void Pager::drop(Block& block) {
  if (std::exchange(block.has_memory, false)) memory_->go(block.memory.get(), block.bytes);
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

namespace {

thread_local bool is_aside = false;  // nothing waits for this thread

}  // namespace

void Pager::pins_aside() { is_aside = true; }

void Pager::wait_for(Lock& lock, Pinning& pin) {
  if (pin.since == Clock::time_point()) pin.since = Clock::now();
  wait(lock, pin.block.name);
}

void Pager::pin(const void* memory, Need need) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  Lock lock(mutex_);
  ++counts_.pins;
  Pinning pin{*block, need};
  bring(lock, pin);
  if (pin.since == Clock::time_point()) return;
  note(is_aside ? Event::Kind::wait_aside : Event::Kind::wait, *block, block->bytes, pin.since);
  if (!is_aside) counts_.waited += std::chrono::duration<double>(Clock::now() - pin.since).count();
}

// Brings a block into memory for a pin, which it then has.
void Pager::bring(Lock& lock, Pinning& pin) {
  Block& block = pin.block;
  for (bool asked = false, missed = false;;) {
    if ((pin.need == Need::room || !block.was_used) && block.tier.state() == BlockState::on_nvme) {
      make_room(lock, pin);
      if (block.tier.state() != BlockState::on_nvme) continue;
      if (!block.wanted) leave_line(block);
      back(block);
      came(whole(block.bytes));
      return block.tier.apply(claim);
    }
    const BlockEvent begin = pin.need == Need::reading ? look : use;
    if (block.tier.allows(begin)) {
      back(block);
      return block.tier.apply(begin);
    }
    if (!std::exchange(missed, true)) ++counts_.misses;
    if (block.tier.state() == BlockState::on_nvme) {
      if (asked && !block.error.empty()) throw Error(block.code, block.error);
      make_room(lock, pin);
      if (block.tier.state() != BlockState::on_nvme) continue;
      if (!block.wanted) leave_line(block);
      ask(block);
      asked = true;
    }
    wait_for(lock, pin);
  }
}

void Pager::unpin(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  memory_->used(block->memory.get());
  block->tier.apply(release);
  if (block->tier.state() == BlockState::ready) leave(*block);
}

void Pager::wait_idle() {
  Lock lock(mutex_);
  while (started_ && (moving_ || !reads_.empty() || !writes_.empty())) wait(lock, "all state");
}

void Pager::record() {
  const std::lock_guard lock(mutex_);
  constexpr std::size_t of_update = 4;  // read, written, waited for, and once more
  events_.reserve(of_update * blocks_.size());
  recording_ = true;
}

Pager::Counts Pager::take_events(std::vector<Event>& events) {
  const std::lock_guard lock(mutex_);
  events.clear();
  events.swap(events_);
  Counts counts = counts_;
  counts.in_memory = in_memory_;
  return counts;
}

Pager::Counts Pager::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.in_memory = in_memory_;
  return counts;
}

}  // namespace sestina
