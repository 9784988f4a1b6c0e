#include "core/memory/device_store.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace sestina {

DeviceStore::DeviceStore(std::shared_ptr<DeviceBlocks> device, std::shared_ptr<BlockStore> below,
                         const Options& options)
    : device_(std::move(device)), below_(std::move(below)), options_(options) {}

std::size_t DeviceStore::add(const std::string& name, std::size_t bytes) {
  Block block{.bytes = bytes, .place = options_.place(name)};
  if (block.place != Place::below) {
    (block.place == Place::host ? in_host_ : unified_) += bytes;
  } else {
    SESTINA_REQUIRE(below_ != nullptr, "{}: there is no store below host memory", name);
    block.below = below_->add(name, bytes);
    largest_ = std::max(largest_, bytes);
  }
  blocks_.push_back(std::move(block));
  return blocks_.size() - 1;
}

void DeviceStore::open() {
  const std::size_t placed = in_host_ + unified_, all = placed + buffers * largest_;
  if (options_.host_bytes != 0 && options_.host_bytes < all)
    fail(ExitCode::bad_deck,
         "optimizer.refresh.host_bytes: {} bytes are too few: {} of state of the device lie in host memory, "
         "and {} are buffers on the way to the disk; at least {}, or 0",
         options_.host_bytes, placed, all - placed, all);
  for (Block& block : blocks_)
    if (block.place == Place::host) block.home = device_->pinned(block.bytes);
  if (largest_ > 0)
    for (std::size_t i = 0; i < buffers; ++i) buffers_.push_back(device_->pinned(largest_));
  together_.reserve(slots_.size());
  if (below_) below_->open();
}

// The device copies while the store below moves what has come out. An error of the device frees all slots.
void DeviceStore::serve(Queue& queue) try {
  constexpr std::chrono::microseconds pause{50};
  while (true) {
    bool moved = false;
    while (take_next(queue)) moved = true;
    moved = take_ended(queue) || moved;
    moved = move_below(queue) || moved;
    if (moved) continue;
    if (rests()) return;
    std::this_thread::sleep_for(pause);
  }
} catch (...) {
  for (Slot& slot : slots_) slot = {};
  throw;
}

bool DeviceStore::rests() const {
  return std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.phase == Slot::Phase::free; });
}

// Starts a transfer if there is a free slot, and a buffer for it where blocks use these. The last one is kept for a
// read.
bool DeviceStore::take_next(Queue& queue) {
  const auto is_free = [](const Slot& slot) { return slot.phase == Slot::Phase::free; };
  const auto end = buffers_.empty() ? slots_.end() : slots_.begin() + static_cast<std::ptrdiff_t>(buffers_.size());
  const auto slot = std::find_if(slots_.begin(), end, is_free);
  if (slot == end) return false;
  Transfer* next = queue.next(false);
  if (next == nullptr && std::count_if(slots_.begin(), end, is_free) > 1) next = queue.next(true);
  if (next == nullptr) return false;
  next->error.clear();
  next->moved = 0;
  start(*slot, *next);
  return true;
}

void DeviceStore::start(Slot& slot, Transfer& transfer) {
  slot.transfer = &transfer;
  const Block& moved = block(slot);
  if (moved.place == Place::unified) {
    if (transfer.writes)
      device_->start_back(number(slot), transfer.memory, moved.bytes);
    else
      device_->start_in(number(slot), nullptr, transfer.memory, 0);
    slot.phase = transfer.writes ? Slot::Phase::leaving : Slot::Phase::coming;
    return;
  }
  slot.host = moved.place == Place::host ? moved.home.get() : buffers_[static_cast<std::size_t>(number(slot))].get();
  if (transfer.writes) {  // a write that changes nothing still waits for all work that uses the block
    device_->start_out(number(slot), transfer.memory, slot.host, transfer.same ? 0 : moved.bytes);
    slot.phase = Slot::Phase::leaving;
  } else if (moved.place == Place::host) {
    device_->start_in(number(slot), slot.host, transfer.memory, moved.bytes);
    slot.phase = Slot::Phase::coming;
  } else {
    slot.phase = Slot::Phase::below;
  }
}

bool DeviceStore::take_ended(Queue& queue) {
  bool any = false;
  for (Slot& slot : slots_) {
    const bool copies = slot.phase == Slot::Phase::leaving || slot.phase == Slot::Phase::coming;
    if (!copies || !device_->is_done(number(slot))) continue;
    any = true;
    const Block& moved = block(slot);
    const bool below = moved.place == Place::below;
    if (slot.transfer->same && moved.place != Place::unified) {
      traffic_.bytes_same += moved.bytes;
    } else if (slot.phase == Slot::Phase::leaving && below) {
      slot.phase = Slot::Phase::below;
      continue;
    } else if (!below) {
      (slot.transfer->writes ? traffic_.bytes_written : traffic_.bytes_read) += moved.bytes;
      slot.transfer->moved = moved.bytes;
    }
    finish(queue, slot);
  }
  return any;
}

bool DeviceStore::move_below(Queue& queue) {
  together_.clear();
  for (const Slot& slot : slots_)
    if (slot.phase == Slot::Phase::below)
      together_.push_back({.block = block(slot).below, .memory = slot.host, .writes = slot.transfer->writes});
  if (together_.empty()) return false;
  below_->run(together_);
  auto done = together_.begin();
  for (Slot& slot : slots_) {
    if (slot.phase != Slot::Phase::below) continue;
    slot.transfer->error = done->error;
    slot.transfer->code = done->code;
    slot.transfer->moved = done->moved;
    ++done;
    if (slot.transfer->writes || !slot.transfer->ok()) {
      finish(queue, slot);
    } else {
      device_->start_in(number(slot), slot.host, slot.transfer->memory, block(slot).bytes);
      slot.phase = Slot::Phase::coming;
    }
  }
  return true;
}

void DeviceStore::finish(Queue& queue, Slot& slot) {
  Transfer& transfer = *std::exchange(slot, {}).transfer;
  queue.ended(transfer);
}

BlockStore::Traffic DeviceStore::traffic() const {
  Traffic sum = below_ ? below_->traffic() : Traffic{};
  sum.bytes_read += traffic_.bytes_read;
  sum.bytes_written += traffic_.bytes_written;
  sum.bytes_same += traffic_.bytes_same;
  return sum;
}

std::string DeviceStore::describe() const {
  constexpr double mib = 1.0 / (1 << 20);
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (in_host_ > 0) add(fmt::format("pinned host memory: {:.1f} MiB", static_cast<double>(in_host_) * mib));
  if (unified_ > 0) add(fmt::format("unified memory: {:.1f} MiB", static_cast<double>(unified_) * mib));
  if (below_ && largest_ > 0) add(below_->describe());
  return text;
}

const char* DeviceStore::tier(std::size_t block) const {
  const Place place = blocks_[block].place;
  return place == Place::unified ? "unified" : place == Place::host ? "host" : "nvme";
}

void DeviceStore::warn(const std::string& message) const { options_.warn(message); }

}  // namespace sestina
