// Arrays of the state of one matrix that lie in pages of their own, which a pager may take out of memory. No Kokkos.
#pragma once
#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "core/deck/kinds.hpp"
#include "core/memory/pager.hpp"

namespace sestina {

struct Page {
  std::string name;
  FieldUse use = FieldUse::update;
  std::size_t bytes = 0;
  std::shared_ptr<std::byte> memory = {};
  std::shared_ptr<Pager> pager = {};  // null: it is always in memory
  bool written = false;               // those who update its matrix have it in use, to write it

  bool in_updates() const { return pager && use != FieldUse::refresh; }
};
using Pages = std::deque<Page>;  // whose addresses stay when there are more

// The preconditioners of one matrix, while it is updated: factors to be written, what refreshes give to be read.
class InUse {
 public:
  explicit InUse(Pages&);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  void let_go();

  Pages& pages_;
  std::size_t held_ = 0;  // the first ones
};

}  // namespace sestina
