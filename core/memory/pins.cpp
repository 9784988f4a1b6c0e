#include "core/memory/pager.hpp"

namespace sestina {

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
    if (page.in_updates()) page.pager->take_turn(page.memory.get());  // at the same time
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
