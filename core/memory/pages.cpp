#include "core/memory/pages.hpp"

namespace sestina {

InUse::InUse(Pages& pages) : pages_(pages) {
  for (const Page& page : pages_)
    if (page.in_updates()) page.pager->want(page.memory.get());  // side by side
  try {
    for (; held_ < pages_.size(); ++held_) {
      Page& page = pages_[held_];
      if (!page.in_updates()) continue;
      const bool writes = page.use == FieldUse::update;
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
