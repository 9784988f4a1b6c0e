// Blocks of state that lie in a store between their uses. Their addresses stay; the memory at them (blocks.hpp), the
// host's or a device's, comes and goes. Whoever reads or writes a block pins it; a block that nobody has pinned is
// written back (unless the store has the same bytes) and its memory is given back. One thread of its own moves blocks,
// so that those that are wanted before their use arrive while others compute. On a device a pin lasts as long as work
// that uses the block is being queued, not until it is done. No Kokkos.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/deck/kinds.hpp"
#include "core/memory/blocks.hpp"
#include "core/memory/state_field.hpp"

namespace sestina {

class Pager : public std::enable_shared_from_this<Pager>, private BlockStore::Queue {
 public:
  struct Options {
    std::size_t most = 0;                              // bytes of blocks in memory at a time; 0: as few as work takes
    double timeout = 60;                               // seconds that one transfer may take
    const char* key = "optimizer.refresh.host_bytes";  // deck key that `most` comes from
    const char* memory = "host";                       // where blocks are used, for traces: host or device
  };
  Pager(std::shared_ptr<BlockStore>, const Options&, std::shared_ptr<BlockMemory> = host_block_memory());
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  // Adds a block, before open(), in the order in which updates use them. memory: from page_memory(), or
  // device_addresses() where blocks are those of a device; it stays as long as the pager, whose thread may move a block
  // when its owner is gone. seldom: there are updates that do not use it.
  void add(const std::string& name, std::shared_ptr<std::byte> memory, std::size_t bytes, bool seldom = false);
  // Adds a queue of work that uses blocks of a device; called before the first block.
  void watch(void* queue) { memory_->watch(queue); }
  std::size_t whole(std::size_t bytes) const { return memory_->whole(bytes); }  // memory that a block takes
  // Adds the bytes that users of blocks have in memory at a time: updates (not at the same time as those of another
  // call), and jobs in addition to them, which take turns with those of another call.
  void need(std::size_t updates, std::size_t jobs);
  // Makes the store; blocks are zeros. Error(bad_deck), with numbers, when the needs exceed `most`. The pager is owned
  // by a shared pointer, which its thread shares: a disk that hangs never meets memory that is gone.
  void open();
  // The owners of the blocks are attached before open(). The last one to detach waits for what is moving and ends the
  // thread. False: it hangs.
  void attach() { ++owners_; }
  bool detach();

  // Returns the block of an address; (null, 0): it is in none, and its memory is always there.
  std::span<const std::byte> block_of(const void* memory) const;

  // These take any address of a block. Other addresses are left alone: their memory is always there.
  enum class Need {
    contents,  // it is read and written
    reading,   // it is only read; whoever writes it meanwhile pins it for that
    room,      // all of it will be written
  };
  void pin(const void* memory, Need);
  void unpin(const void* memory);
  void want(const void* memory);  // the block will be pinned soon: it is read if there is room
  // The block will be pinned again after all those for which this was called before: it is read when its turn comes, as
  // soon as there is room in addition to that of jobs. Pins of others may push it out again, the last in turn first,
  // and then nothing is read ahead before the next turn.
  void want_in_turn(const void* memory);
  void take_turn(const void* memory);  // its turn has come: it is pinned next
  // Called in the passes before an update: the turns come next. Blocks that others have pushed out meanwhile, as a save
  // does, are read again, and before the first update of a run or a resume those that were added first.
  void expect_turns();
  // Returns whether it lies on a disk between its uses, so that all such blocks together may be more than memory holds.
  bool is_beyond_memory(const void* memory);
  void wait_idle();  // returns when nothing is moving; Error(io_error) when that takes too long

  struct Counts {
    std::uint64_t pins = 0, misses = 0;               // misses: pins that had to wait for a transfer
    double waited = 0;                                // seconds that pins waited, but for those of refresh workers
    std::size_t in_memory = 0, largest = 0;           // bytes; the most at any time
    std::uint64_t bytes_read = 0, bytes_written = 0;  // bytes of transfers that have ended
    bool abandoned = false;                           // writing failed: all that is in memory stays there
  };
  Counts counts() const;
  // What happened to a block: it was read or written, or somebody waited for it.
  struct Event {
    enum class Kind : std::uint8_t { read, write, wait, wait_aside };  // aside: of a refresh worker
    Kind kind = Kind::read;
    const char *name, *from, *to;  // as long as the pager lives; tiers: host, device, nvme, unified
    std::uint64_t bytes = 0;       // bytes that went to or came from the store; of a wait: those of the block
    std::chrono::steady_clock::time_point begin, end;
  };
  void record();  // notes events from here on, before the first use of a block; before, that costs nothing
  // Returns the counts, and in `events` those of which they have grown since the last call.
  Counts take_events(std::vector<Event>& events);
  // Says that nothing waits for what this thread does, as a refresh worker: nor do its waits count.
  static void pins_aside();
  std::size_t bytes() const { return bytes_; }  // of all blocks
  std::size_t working() const { return updates_ + jobs_; }
  std::size_t limit() const { return limit_; }  // bytes in memory at a time, after open()
  std::string describe() const { return store_->describe(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Block {
    std::string name;
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
    BlockTier tier;
    bool has_memory = false;               // at its addresses
    bool seldom = false, kept = false;     // not of each update; stays in memory, since there is room
    bool queued = false;                   // waits to be written
    bool moving = false;                   // its transfer is with the store
    bool was_used = false;                 // else it is zeros, which the store does not have
    bool in_line = false, wanted = false;  // is in line_; its turn is still to come
    std::size_t place = 0;                 // among all blocks in the order of the first update
    std::uint64_t turn = 0;                // number of its turn
    BlockStore::Transfer transfer;
    std::string error;  // of the last transfer
    ExitCode code = ExitCode::done;
    Clock::time_point began = {};                                 // its transfer, where that is recorded
    std::uint64_t next_use() const { return wanted ? turn : 0; }  // 0: soon
  };
  using Lock = std::unique_lock<std::mutex>;

  Block* find(const void* memory);
  const Block* find(const void* memory) const { return const_cast<Pager*>(this)->find(memory); }
  void back(Block&);  // gives it memory
  void drop(Block&);
  void wait(Lock&, const std::string& name);
  // A pin, and since when it waits.
  struct Pinning {
    Block& block;
    Need need;
    Clock::time_point since = {};
  };
  void wait_for(Lock&, Pinning&);
  void bring(Lock&, Pinning&);
  void choose_kept();
  void make_room(Lock&, Pinning&);
  void ask(Block&);
  bool can_be_read(const Block& block) const { return block.was_used && block.tier.state() == BlockState::on_nvme; }
  bool ask_if_room(Block&);
  void read_ahead();  // the blocks of the line
  void number_turns();
  std::vector<std::size_t>::iterator place_in_line(const Block&);
  void enter_line(Block&);
  void leave_line(Block&);
  void leave(Block&);     // takes it out of memory where there is no room to keep it
  void send_out(Block&);  // wherever there is room
  void move_blocks();     // loop of the thread
  BlockStore::Transfer* next(bool writes) override;
  Block* take(bool writes);  // makes its transfer the next one of this direction
  void ended(BlockStore::Transfer&) override;
  void finish_transfer(Lock&, BlockStore::Transfer&);
  void note(Event::Kind, const Block&, std::uint64_t bytes, Clock::time_point begin);
  void fail_all(Lock&, const Error&);  // all transfers that are under way or asked for
  void came(std::size_t bytes);

  std::shared_ptr<BlockStore> store_;
  std::shared_ptr<BlockMemory> memory_;
  Options options_;
  std::vector<Block> blocks_;  // by address
  std::size_t bytes_ = 0, updates_ = 0, jobs_ = 0;
  std::size_t limit_ = 0, in_memory_ = 0, leaving_ = 0;
  std::size_t awaited_ = 0;  // room that pins wait for
  bool crowded_ = false;     // a block had to go before its turn, and no turn has been taken since
  mutable std::mutex mutex_;
  std::condition_variable for_mover_, for_users_;
  std::vector<std::size_t> reads_, writes_;  // blocks asked for; blocks to go
  std::vector<std::size_t> line_;            // wanted and not in memory, by their turns
  std::uint64_t turns_ = 0;
  bool moving_ = false, stopping_ = false, started_ = false;
  int owners_ = 0;
  Counts counts_;
  bool recording_ = false;
  std::vector<Event> events_;  // since they were last taken
  std::thread mover_;
};

// A block is in memory while a pin of it lives. A null pager makes it do nothing.
class Pin {
 public:
  Pin() = default;
  Pin(Pager* pager, const void* memory, Pager::Need need = Pager::Need::contents)
      : pager_(memory == nullptr ? nullptr : pager), memory_(memory) {
    if (pager_ != nullptr) pager_->pin(memory_, need);
  }
  ~Pin() {
    if (pager_ != nullptr) pager_->unpin(memory_);
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

 private:
  Pager* pager_ = nullptr;
  const void* memory_ = nullptr;
};

// Pins all blocks that these bytes lie in, one at least. Room is made for those of which all bytes are among them; the
// others keep what they hold.
class PinAll {
 public:
  PinAll(Pager*, const void* memory, std::size_t bytes, Pager::Need);
  ~PinAll() { let_go(); }
  PinAll(const PinAll&) = delete;
  PinAll& operator=(const PinAll&) = delete;

 private:
  void let_go();

  Pager* pager_;
  const std::byte *begin_, *end_;  // end of the last block that is pinned
};

// Calls use(piece, begin) for the parts of a field that lie in a block each, in turn, with the first byte of each in
// the field: so few of its blocks are in memory at a time as use() pins.
template <class Use>
void for_each_block(const StateField& field, const Use& use) {
  std::size_t begin = 0;
  do {  // an empty field is one part too
    std::size_t count = field.bytes() - begin;
    if (field.pager != nullptr) {
      const std::byte* const at = static_cast<const std::byte*>(field.data) + begin;
      const std::span<const std::byte> block = field.pager->block_of(at);
      if (!block.empty()) count = std::min(count, static_cast<std::size_t>(block.data() + block.size() - at));
    }
    StateField part = bytes_of(field, begin, count);
    part.pager = field.pager;
    use(part, begin);
    begin += part.bytes();
  } while (begin < field.bytes());
}

// State that may lie elsewhere between its uses can be read by anybody who has it in memory; to write there is to hold
// a guard, which pins it as one who changes it does.

// Pins while it lives, and has the view that may be written meanwhile: a guard that nobody keeps gives no view.
template <class View>
class WriteGuard {
 public:
  // bytes: see PinAll; 0: those of one block.
  WriteGuard(Pager* pager, const void* memory, Pager::Need need, View view, std::size_t bytes = 0)
      : pin_(pager, memory, bytes, need), view_(std::move(view)) {}
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;

  const View& view() const& { return view_; }
  const View& view() const&& = delete;

 private:
  PinAll pin_;
  View view_;
};

// Returns a guard for the bytes of a field. Whoever made the field gave it memory that may be written.
inline WriteGuard<std::byte*> write_to(const StateField& field, Pager::Need need = Pager::Need::contents) {
  return {field.pager, field.data, need, const_cast<std::byte*>(static_cast<const std::byte*>(field.data)),
          field.bytes()};
}

// An array of the state of one matrix that lies in pages of its own, which a pager may take out of memory.
struct Page {
  std::string name;
  FieldUse use = FieldUse::update;
  std::size_t bytes = 0;
  std::shared_ptr<std::byte> memory = {};
  std::shared_ptr<Pager> pager = {};  // null: it is always in memory
  bool written = false;               // those who update its matrix have it in use, to write it

  bool in_updates() const { return pager && use != FieldUse::refresh; }
};
using Pages = std::deque<Page>;  // their addresses stay when there are more

// Returns memory for blocks that lie in this tier between their uses: pages of the host where it computes, else
// addresses of the device, or unified memory.
std::shared_ptr<std::byte> block_memory(MemorySpace, Tier, std::size_t bytes);

// Pins the preconditioners of one matrix while it is updated: factors to be written, results of refreshes to be read.
class InUse {
 public:
  explicit InUse(Pages&);
  ~InUse();
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  void let_go();

  Pages& pages_;
  std::size_t held_ = 0;  // number of pages pinned so far, from the first one on
};

}  // namespace sestina
