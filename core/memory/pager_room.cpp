// Which blocks are in memory: those that stay for good, those that pins need, and those that are read ahead of their
// turn. The order of use is that of the update before, so whenever one has to go it is the one whose turn is last.
#include <algorithm>
#include <utility>

#include "core/memory/pager.hpp"

namespace sestina {

using enum BlockEvent;

// Chooses the blocks that stay in memory, while they are in the order in which updates use them. Where not all fit,
// those of each update come first, spread evenly over its order, so that what stays computes while the others move.
void Pager::choose_kept() {
  const bool all = options_.most >= bytes_;
  std::size_t each = 0, kept = 0, room = all ? bytes_ : limit_ - working();
  for (const Block& block : blocks_) each += block.seldom ? 0 : whole(block.bytes);
  const double share = each == 0 ? 0 : static_cast<double>(room) / static_cast<double>(each);
  const auto keep = [&](Block& block) {
    const std::size_t size = whole(block.bytes);
    if (block.kept || kept + size > room) return;
    block.kept = true;
    kept += size;
  };
  double due = 0;
  for (Block& block : blocks_) {
    if (block.seldom) continue;
    due += share * static_cast<double>(whole(block.bytes));
    if (static_cast<double>(kept + whole(block.bytes)) <= due) keep(block);
  }
  for (const bool seldom : {false, true})
    for (Block& block : blocks_)
      if (block.seldom == seldom) keep(block);
}

// Waits for memory: blocks that are going make room, or else one that is in memory ahead of its turn, the last in turn.
// Where there are none either, the caller's own share of the limit is free.
void Pager::make_room(Lock& lock, Pinning& pin) {
  const Block& block = pin.block;
  struct Awaited {  // nothing else takes the room meanwhile
    Awaited(std::size_t& sum, std::size_t bytes) : sum(sum), bytes(bytes) { sum += bytes; }
    ~Awaited() { sum -= bytes; }
    std::size_t& sum;
    std::size_t bytes;
  } const awaited(awaited_, whole(block.bytes));
  while (block.tier.state() == BlockState::on_nvme && in_memory_ + awaited.bytes > limit_) {
    Block* last = nullptr;
    bool coming = false;
    for (Block& other : blocks_) {
      const BlockState state = other.tier.state();
      coming = coming || state == BlockState::reading;
      if ((state != BlockState::clean && state != BlockState::ready) || other.kept) continue;
      if (last == nullptr || other.next_use() > last->next_use()) last = &other;
    }
    if (leaving_ == 0 && last != nullptr) {
      crowded_ = true;
      send_out(*last);
    }
    if (leaving_ == 0 && !coming) return;
    wait_for(lock, pin);
  }
}

void Pager::want(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  ask_if_room(*block);
}

void Pager::want_in_turn(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  leave_line(*block);
  block->turn = ++turns_;
  block->wanted = true;
  enter_line(*block);
  crowded_ = false;
  read_ahead();
}

void Pager::take_turn(const void* memory) {
  Block* const block = find(memory);
  if (block == nullptr) return;
  const std::lock_guard lock(mutex_);
  leave_line(*block);
  block->wanted = false;
  block->turn = 0;
  crowded_ = false;
  if (can_be_read(*block) && !ask_if_room(*block)) enter_line(*block);  // the first to have room
}

void Pager::expect_turns() {
  const std::lock_guard lock(mutex_);
  if (!started_) return;
  if (turns_ == 0) number_turns();
  crowded_ = false;
  read_ahead();
}

// Gives blocks the turns that they will have in the first update, before anybody can know better.
void Pager::number_turns() {
  turns_ = blocks_.size();
  for (Block& block : blocks_) {
    if (block.seldom || block.wanted) continue;
    block.turn = block.place + 1;
    block.wanted = true;
    if (can_be_read(block)) enter_line(block);
  }
}

// Blocks are in the line by their turns.
std::vector<std::size_t>::iterator Pager::place_in_line(const Block& block) {
  return std::lower_bound(line_.begin(), line_.end(), block.turn,
                          [this](std::size_t i, std::uint64_t turn) { return blocks_[i].turn < turn; });
}

void Pager::enter_line(Block& block) {
  if (std::exchange(block.in_line, true)) return;
  line_.insert(place_in_line(block), static_cast<std::size_t>(&block - blocks_.data()));
}

void Pager::leave_line(Block& block) {
  if (!std::exchange(block.in_line, false)) return;
  line_.erase(std::find(place_in_line(block), line_.end(), static_cast<std::size_t>(&block - blocks_.data())));
}

void Pager::read_ahead() {
  std::size_t seen = 0;
  for (; seen < line_.size() && !crowded_; ++seen) {
    Block& block = blocks_[line_[seen]];
    const BlockState state = block.tier.state();
    if (state == BlockState::dirty || state == BlockState::writing) break;  // it is on its way out
    const std::size_t limit = block.wanted ? limit_ - jobs_ : limit_;
    if (can_be_read(block)) {
      if (in_memory_ + awaited_ + whole(block.bytes) > limit) break;
      ask(block);
    }
    block.in_line = false;
  }
  line_.erase(line_.begin(), line_.begin() + static_cast<std::ptrdiff_t>(seen));
}

// Asks for a block's contents, before those that are used later.
void Pager::ask(Block& block) {
  block.error.clear();
  block.tier.apply(read);
  came(whole(block.bytes));
  const auto later = std::find_if(reads_.begin(), reads_.end(),
                                  [&](std::size_t i) { return blocks_[i].next_use() > block.next_use(); });
  reads_.insert(later, static_cast<std::size_t>(&block - blocks_.data()));
  for_mover_.notify_one();
}

bool Pager::ask_if_room(Block& block) {
  if (!can_be_read(block) || in_memory_ + awaited_ + whole(block.bytes) > limit_) return false;
  ask(block);
  return true;
}

// A block that somebody used out of turn stays until its own, if that is the next one and nobody needs the room.
void Pager::leave(Block& block) {
  if (block.kept || counts_.abandoned) return;
  const bool is_next = block.wanted && (line_.empty() || block.turn <= blocks_[line_.front()].turn);
  if (is_next && !crowded_ && in_memory_ + awaited_ <= limit_ - jobs_) return;
  send_out(block);
}

void Pager::send_out(Block& block) {
  if (counts_.abandoned) return;
  block.tier.apply(evict);
  if (block.wanted) enter_line(block);
  if (std::exchange(block.queued, true)) return;
  leaving_ += whole(block.bytes);
  writes_.push_back(static_cast<std::size_t>(&block - blocks_.data()));
  for_mover_.notify_one();
}

}  // namespace sestina
