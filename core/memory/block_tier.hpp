// Where one block of state is on its way between host memory and a tier below it, and what may happen to it there:
//
//   clean -> computing -> ready -> dirty -> writing -> on_nvme -> reading -> clean
//
// after the states that Asteria gives an inverse factor (a result becomes visible where its optimizer says). Pure: it
// moves nothing. An event that a state does not allow is an internal error: pages are never dropped while dirty,
// nothing is computed into a block that is being read, and nothing is read over one that is in use. No Kokkos.
#pragma once
#include <cstdint>
#include <string_view>

namespace sestina {

enum class BlockState : std::uint8_t {
  clean,      // in memory, as it was read
  computing,  // in memory, in use
  ready,      // in memory, perhaps changed
  dirty,      // the same, about to leave
  writing,    // on its way out
  on_nvme,    // its pages are dropped
  reading,    // on its way in
};
enum class BlockEvent : std::uint8_t {
  use,      // somebody begins to read and write it; several may at a time
  look,     // the same, by one who leaves it as it is
  claim,    // the same, by one who needs nothing of what it held
  release,  // one of them has ended
  evict,    // it is to leave memory
  write,
  written,
  read,
  arrived,
  failed,  // the transfer under way
};

std::string_view name(BlockState);
std::string_view name(BlockEvent);

class BlockTier {
 public:
  BlockState state() const { return state_; }
  int users() const { return users_; }
  bool in_memory() const { return state_ != BlockState::on_nvme; }
  bool changed() const { return changed_; }  // since it was read or written; false: the tier below has the same
  bool allows(BlockEvent) const;
  void apply(BlockEvent);

 private:
  BlockState state_ = BlockState::ready;
  int users_ = 0;
  bool changed_ = false;
};

}  // namespace sestina
