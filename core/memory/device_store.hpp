// A store for the blocks of a device between their uses: in pinned host memory, in a store below it, a file, through a
// few pinned buffers, or in unified memory, where nothing is copied and pages are asked for instead. Copies of the
// device go on at the same time, in both directions, and during its work. No Kokkos.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/memory/blocks.hpp"

namespace sestina {

class DeviceStore final : public BlockStore {
 public:
  // Where a block lies: in the store below, in host memory of its own, or where it is used.
  enum class Place : std::uint8_t { below, host, unified };
  struct Options {
    std::function<Place(std::string_view name)> place;  // of a block, by its name
    std::size_t host_bytes = 0;                         // of blocks in host memory, unified or not, at most; 0: any
    std::function<void(const std::string& message)> warn;
  };
  // `below` is null where no block lies there.
  DeviceStore(std::shared_ptr<DeviceBlocks>, std::shared_ptr<BlockStore> below, const Options&);

  std::size_t add(const std::string& name, std::size_t bytes) override;
  // Throws Error(bad_deck) when blocks need more than host_bytes.
  void open() override;
  void serve(Queue&) override;
  Traffic traffic() const override;
  std::string describe() const override;
  bool is_in_memory(std::size_t block) const override { return blocks_[block].place != Place::below; }
  const char* tier(std::size_t block) const override;
  void warn(const std::string& message) const override;

  // The number of buffers between the device and the store below.
  static constexpr std::size_t buffers = 4;

 private:
  struct Block {
    std::size_t bytes = 0;
    std::size_t below = 0;                 // number in the store below; a block of Place::host has:
    std::shared_ptr<std::byte> home = {};  // host memory
    Place place = Place::host;
  };
  // A block that is being moved.
  struct Slot {
    enum class Phase : std::uint8_t { free, leaving, below, coming } phase = Phase::free;  // coming to the device
    Transfer* transfer = nullptr;
    std::byte* host = nullptr;  // its home, or a buffer
  };

  bool take_next(Queue&);  // another transfer; false: there is none, or no slot
  void start(Slot&, Transfer&);
  bool take_ended(Queue&);  // ends copies that are done; false: none is
  bool move_below(Queue&);  // moves all that wait for the store below; false: none does
  void finish(Queue&, Slot&);
  Block& block(const Slot& slot) { return blocks_[slot.transfer->block]; }
  int number(const Slot& slot) const { return static_cast<int>(&slot - slots_.data()); }
  bool rests() const;

  std::shared_ptr<DeviceBlocks> device_;
  std::shared_ptr<BlockStore> below_;
  Options options_;
  std::vector<Block> blocks_;
  std::vector<std::shared_ptr<std::byte>> buffers_;  // one for each of the first slots
  std::array<Slot, DeviceBlocks::most_copies> slots_;
  std::vector<Transfer> together_;  // for the store below, in the order of the slots
  std::size_t in_host_ = 0, unified_ = 0, largest_ = 0;
  Traffic traffic_;  // to and from host memory
};

}  // namespace sestina
