// The way to memory of state that may be written. What may lie elsewhere between its uses (pager.hpp) can be looked at
// by anybody who has it in memory; to write there is to hold a guard, which pins it as one who changes it does. No
// Kokkos.
#pragma once
#include <utility>

#include "core/memory/pager.hpp"
#include "core/memory/state_field.hpp"

namespace sestina {

// Pins for as long as it lives, and has the view that may be written meanwhile: a guard that nobody keeps gives none.
template <class View>
class WriteGuard {
 public:
  WriteGuard(Pager* pager, const void* memory, Pager::Need need, View view)
      : pin_(pager, memory, need), view_(std::move(view)) {}
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;

  const View& view() const& { return view_; }
  const View& view() const&& = delete;

 private:
  Pin pin_;
  View view_;
};

// The bytes of a field. Whoever made the field gave it memory that may be written.
inline WriteGuard<std::byte*> write_to(const StateField& field, Pager::Need need = Pager::Need::contents) {
  return {field.pager, field.data, need, const_cast<std::byte*>(static_cast<const std::byte*>(field.data))};
}

}  // namespace sestina
