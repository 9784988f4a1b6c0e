// Blocks between host memory and a store below it: pages that really go or move on, budgets, disks
// that fail, hang and lie, and ten thousand jobs against a model.
#include "core/memory/pager.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "regression/unit/core/paging_rig.hpp"
#include "regression/unit/resident_pages.hpp"

namespace sestina::reference {
namespace {

using namespace std::chrono_literals;

struct PagerRig {
  PagerRig(std::size_t count, std::size_t bytes, const Pager::Options& options = {}, std::size_t updates = 0)
      : bytes(bytes), pager(std::make_shared<Pager>(store, options)) {
    for (std::size_t i = 0; i < count; ++i) {
      blocks.push_back(page_memory(bytes));
      pager->add("block " + std::to_string(i), blocks.back(), bytes);
    }
    pager->need(updates == 0 ? 3 * whole_pages(bytes) : updates, 0);
    pager->attach();
  }
  ~PagerRig() { pager->detach(); }

  void fill(std::size_t block, unsigned value) {
    const Pin pin(pager.get(), blocks[block].get());
    std::memset(blocks[block].get(), static_cast<int>(value), bytes);
  }
  // All of its bytes, or 256.
  unsigned value(std::size_t block) {
    const Pin pin(pager.get(), blocks[block].get(), Pager::Need::reading);
    const std::byte first = blocks[block].get()[0];
    for (std::size_t i = 0; i < bytes; ++i)
      if (blocks[block].get()[i] != first) return 256;
    return static_cast<unsigned>(first);
  }
  // All of them have been written, and lie in the store.
  void store_all(unsigned value = 0) {
    for (std::size_t i = 0; i < blocks.size(); ++i) fill(i, value);
    pager->wait_idle();
  }
  // Pages of a block that have memory.
  std::size_t resident(std::size_t block) const { return test::resident_pages(blocks[block].get(), bytes); }

  std::size_t bytes;
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
  std::vector<std::shared_ptr<std::byte>> blocks;
  std::shared_ptr<Pager> pager;
};

// Whether the system is asked for huge pages at an address ("hg" among the flags of its mapping).
bool asks_for_huge_pages(const void* memory) {
  std::ifstream file("/proc/self/smaps");
  const auto at = reinterpret_cast<std::uintptr_t>(memory);
  bool here = false;
  for (std::string line; std::getline(file, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) here = begin <= at && at < end;
    if (here && line.starts_with("VmFlags:")) return line.find(" hg") != std::string::npos;
  }
  return false;
}

// Large blocks in large pages, by which a transfer has fewer pieces; what has no room for one is left alone, so that
// nothing next to a block comes into memory with it.
TEST(Pager, LargeBlocksLieInHugePagesOfTheirOwn) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GTEST_SKIP() << "no huge pages here";
  constexpr std::size_t huge = std::size_t{2} << 20, bytes = 3 * huge - 5 * 4096;
  const auto block = page_memory(bytes), small = page_memory(huge - 4096);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % huge, 0u);
  EXPECT_TRUE(asks_for_huge_pages(block.get()));
  EXPECT_TRUE(asks_for_huge_pages(block.get() + 2 * huge - 1));
  EXPECT_FALSE(asks_for_huge_pages(block.get() + 2 * huge));
  EXPECT_FALSE(asks_for_huge_pages(small.get()));
  std::memset(block.get(), 1, bytes);  // all of it is there
}

constexpr std::size_t large = std::size_t{2} << 20;  // blocks whose pages go when they go

TEST(Pager, PagesThatNobodyUsesAreGivenBack) {
  constexpr std::size_t bytes = large;
  PagerRig rig(8, bytes);
  rig.pager->open();
  for (unsigned i = 0; i < 8; ++i) rig.fill(i, i + 1);
  rig.pager->wait_idle();
  for (unsigned i = 0; i < 8; ++i) EXPECT_EQ(rig.resident(i), 0u) << i;
  EXPECT_EQ(rig.pager->counts().in_memory, 0u);
  {
    const Pin pin(rig.pager.get(), rig.blocks[3].get() + 77);  // any of its addresses
    EXPECT_EQ(rig.resident(3), bytes / whole_pages(1));
    EXPECT_EQ(rig.resident(4), 0u);
    EXPECT_EQ(rig.pager->counts().in_memory, bytes);
  }
  for (unsigned i = 0; i < 8; ++i) EXPECT_EQ(rig.value(i), i + 1);
  const int elsewhere = 0;
  const Pin nothing(rig.pager.get(), &elsewhere);  // no block: always there
}

// Those of small blocks are moved to the next one, as many as all have at a time. Sizes do not mix.
TEST(Pager, PagesOfSmallBlocksMoveOn) {
  constexpr std::size_t page = 4096, count = 9, most = 32 * page;
  const std::size_t sizes[] = {10 * page, 5 * page - 100, 3 * page};
  auto store = std::make_shared<MemoryStore>();
  auto pager = std::make_shared<Pager>(store, Pager::Options{});
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    blocks.push_back(page_memory(sizes[i % 3]));
    pager->add("block " + std::to_string(i), blocks.back(), sizes[i % 3]);
  }
  pager->need(most, 0);
  pager->attach();
  pager->open();
  const auto pages_of = [&](std::size_t i) { return whole_pages(sizes[i % 3]) / page; };
  const auto resident = [&] {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += test::resident_pages(blocks[i].get(), sizes[i % 3]);
    return sum;
  };
  std::vector<int> left(count, -1);
  std::size_t moved = 0;
  for (int use = 0; use < 60; ++use) {
    const std::size_t i = static_cast<std::size_t>(use * 5 + use / 9) % count;
    pager->wait_idle();
    const std::size_t before = resident();
    {
      const Pin pin(pager.get(), blocks[i].get());
      for (std::size_t at : {std::size_t{0}, sizes[i % 3] - 1})
        EXPECT_EQ(static_cast<int>(blocks[i].get()[at]), left[i] < 0 ? 0 : left[i]) << "use " << use;
      std::memset(blocks[i].get(), left[i] = use, sizes[i % 3]);
    }
    const std::size_t after = resident();
    EXPECT_LE(after, most / page);
    moved += use > 20 && before >= pages_of(i) && after == before ? 1 : 0;
  }
  EXPECT_GT(moved, 10u) << "a block came, and no more memory is in use";
  pager->detach();
}

// Zeros, of which the store knows nothing until somebody has used them.
TEST(Pager, BlocksBeginAsZerosThatTakeNothing) {
  PagerRig rig(4, 100000);
  rig.store->fails = [](const BlockStore::Transfer& t) { return !t.writes; };
  rig.pager->open();
  rig.pager->wait_idle();
  EXPECT_EQ(rig.store->moved.bytes_written, 0u);
  EXPECT_EQ(rig.pager->counts().in_memory, 0u);
  for (std::size_t i = 0; i < 4; ++i) {
    rig.pager->want(rig.blocks[i].get());
    EXPECT_EQ(rig.value(i), 0u);
  }
}

TEST(Pager, WhatIsWantedAheadIsThereInTime) {
  PagerRig rig(5, 100000, {}, 4 * whole_pages(100000));  // nothing is kept
  rig.pager->open();
  rig.store_all(7);
  for (std::size_t i = 0; i < 4; ++i) rig.pager->want(rig.blocks[i].get());
  rig.pager->wait_idle();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(rig.value(i), 7u);
  EXPECT_EQ(rig.pager->counts().misses, 0u);
  EXPECT_EQ(rig.pager->counts().pins, 9u);
  rig.pager->wait_idle();
  EXPECT_EQ(rig.value(0), 7u);
  EXPECT_EQ(rig.pager->counts().misses, 1u);
}

// Blocks that have memory, of the rig, by their digits.
std::string blocks_in_memory(const PagerRig& rig) {
  std::string there;
  for (std::size_t i = 0; i < rig.blocks.size(); ++i)
    if (rig.resident(i) > 0) there += std::to_string(i);
  return there;
}

// As a save between two updates does, which reads all blocks: those that were read ahead go. The passes that follow ask
// for them again, long before the update.
TEST(Pager, WhatASavePushedOutIsThereBeforeItsTurn) {
  constexpr std::size_t count = 6;
  PagerRig rig(count, large, {}, 3 * large);
  rig.pager->open();
  rig.store_all(1);
  for (std::size_t i = 0; i < count; ++i) rig.pager->want_in_turn(rig.blocks[i].get());
  rig.pager->wait_idle();
  ASSERT_EQ(blocks_in_memory(rig), "012");
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(rig.value(i), 1u);
  rig.pager->wait_idle();
  ASSERT_NE(blocks_in_memory(rig), "012");
  rig.pager->expect_turns();
  rig.pager->wait_idle();
  EXPECT_EQ(blocks_in_memory(rig), "012");
  const Pager::Counts before = rig.pager->counts();
  for (std::size_t i = 0; i < 3; ++i) {
    rig.pager->take_turn(rig.blocks[i].get());
    const Pin pin(rig.pager.get(), rig.blocks[i].get());
  }
  EXPECT_EQ(rig.pager->counts().misses, before.misses);
  EXPECT_EQ(rig.pager->counts().waited, before.waited);
  EXPECT_LE(rig.pager->counts().largest, 3 * large);
}

// After a resume nobody has used a block yet: the order of the first update is that in which they were added, wherever
// they lie.
TEST(Pager, TheFirstUpdateHasTurnsToo) {
  PagerRig rig(6, large, {}, 3 * large);
  rig.pager->open();
  rig.store_all(2);
  EXPECT_EQ(blocks_in_memory(rig), "");
  rig.pager->expect_turns();
  rig.pager->wait_idle();
  EXPECT_EQ(blocks_in_memory(rig), "012");
  const std::uint64_t misses = rig.pager->counts().misses;
  for (std::size_t i = 0; i < 6; ++i) {
    rig.pager->take_turn(rig.blocks[i].get());
    EXPECT_EQ(rig.value(i), 2u);
    rig.pager->want_in_turn(rig.blocks[i].get());
    rig.pager->wait_idle();
  }
  EXPECT_EQ(rig.pager->counts().misses, misses);
  EXPECT_EQ(blocks_in_memory(rig), "012");
}

TEST(Pager, SecondsOfWaitsAreThoseOfUpdates) {
  PagerRig rig(4, 100000, {}, whole_pages(100000));
  rig.pager->open();
  rig.store_all(3);
  rig.store->before = [] { std::this_thread::sleep_for(20ms); };
  EXPECT_EQ(rig.value(0), 3u);
  rig.pager->wait_idle();
  const double waited = rig.pager->counts().waited;
  EXPECT_GE(waited, 0.02);
  std::thread([&rig] {
    Pager::pins_aside();
    EXPECT_EQ(rig.value(1), 3u);
  }).join();
  EXPECT_EQ(rig.pager->counts().waited, waited);
  rig.store->before = {};
}

TEST(Pager, ReadsAheadInTurnAsFarAsThereIsRoom) {
  constexpr std::size_t count = 6, bytes = large;
  PagerRig rig(count, bytes, {}, 3 * bytes);
  rig.pager->need(0, bytes);  // of jobs: nothing is read ahead into it
  rig.pager->open();
  rig.store_all();
  for (std::size_t i = 0; i < count; ++i) rig.pager->want_in_turn(rig.blocks[i].get());
  rig.pager->wait_idle();
  EXPECT_EQ(blocks_in_memory(rig), "012");
  for (unsigned use = 0; use < 4 * count; ++use) {
    {
      rig.pager->take_turn(rig.blocks[use % count].get());
      const Pin pin(rig.pager.get(), rig.blocks[use % count].get());  // one: between two it could be on its way out
      EXPECT_EQ(rig.value(use % count), use < count ? 0 : use - count);
      rig.fill(use % count, use);
    }
    rig.pager->want_in_turn(rig.blocks[use % count].get());
    rig.pager->wait_idle();
    EXPECT_EQ(rig.resident(use % count), 0u);
    for (unsigned next = 1; next <= 3; ++next) EXPECT_GT(rig.resident((use + next) % count), 0u) << use << " " << next;
  }
  EXPECT_EQ(rig.pager->counts().misses, 0u);
  EXPECT_LE(rig.pager->counts().largest, 4 * bytes);
}

// What is recorded of an update adds up to its counts, and a slow block is the one that it waits for.
TEST(Pager, EventsAddUpToCountsAndNameWhatIsSlow) {
  constexpr std::size_t count = 6, bytes = 100000;
  const std::string slow = "block 4";
  PagerRig rig(count, bytes, {}, 2 * whole_pages(bytes));
  rig.pager->open();
  rig.pager->record();
  rig.store->fails = [&rig, &slow](const BlockStore::Transfer& t) {  // it does not: it takes its time
    if (!t.writes && rig.store->names[t.block] == slow) std::this_thread::sleep_for(50ms);
    return false;
  };
  Pager::Counts before;
  std::vector<Pager::Event> events;
  for (int update = 0; update < 4; ++update) {
    for (std::size_t i = 0; i < count; ++i) {
      rig.pager->take_turn(rig.blocks[i].get());
      if (update == 2) EXPECT_EQ(rig.value(i), 1u);  // unchanged, so not written
      if (update != 2) rig.fill(i, static_cast<unsigned>(update));
      rig.pager->want_in_turn(rig.blocks[i].get());
    }
    const Pager::Counts after = rig.pager->take_events(events);  // some are still on their way
    std::uint64_t read = 0, written = 0;
    double waited = 0, slowly = 0;
    for (const Pager::Event& event : events) {
      EXPECT_LE(event.begin, event.end);
      EXPECT_STREQ(event.from, event.kind == Pager::Event::Kind::write ? "host" : "nvme");
      EXPECT_STREQ(event.to, event.kind == Pager::Event::Kind::write ? "nvme" : "host");
      if (event.kind == Pager::Event::Kind::read) read += event.bytes;
      if (event.kind == Pager::Event::Kind::write) written += event.bytes;
      if (event.kind != Pager::Event::Kind::wait) continue;
      const double seconds = std::chrono::duration<double>(event.end - event.begin).count();
      waited += seconds;
      if (event.name == slow) slowly += seconds;
    }
    EXPECT_EQ(read, after.bytes_read - before.bytes_read) << update;
    EXPECT_EQ(written, after.bytes_written - before.bytes_written) << update;
    EXPECT_NEAR(waited, after.waited - before.waited, 1e-3) << update;  // clocks are read one after the other
    if (update > 0) EXPECT_GT(slowly, 0.5 * waited) << update;
    if (update > 0) EXPECT_GT(slowly, 0.03) << update;
    before = after;
  }
  EXPECT_GT(before.bytes_read, 2 * count * bytes);
  rig.pager->wait_idle();
  rig.store->fails = {};
}

TEST(Pager, KeepsWhatTheBudgetAllowsAndRefusesOneThatIsTooSmall) {
  constexpr std::size_t bytes = large;
  PagerRig small(6, bytes, {.most = bytes}, 3 * bytes);
  try {
    small.pager->open();
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_deck);
    for (const std::string& word : {std::string("host_bytes"), std::to_string(bytes), std::to_string(3 * bytes)})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
  EXPECT_FALSE(small.store->opened);
  PagerRig rig(6, bytes, {.most = 5 * bytes}, 3 * bytes);  // two of six stay
  rig.pager->open();
  rig.pager->wait_idle();
  for (int round = 0; round < 3; ++round)
    for (unsigned i = 0; i < 6; ++i) {
      rig.fill(i, i);
      rig.pager->wait_idle();
    }
  std::size_t there = 0;
  for (std::size_t i = 0; i < 6; ++i) there += rig.resident(i) > 0;
  EXPECT_EQ(there, 2u);
  EXPECT_EQ(rig.store->moved.bytes_written, 3 * 4 * bytes);  // of the others, after each use
  EXPECT_LE(rig.pager->counts().largest, 5 * bytes);
}

TEST(Pager, ADiskThatCannotBeWrittenIsLeftForMemory) {
  PagerRig rig(4, 50000);
  rig.pager->open();
  for (unsigned i = 0; i < 4; ++i) rig.fill(i, 10 + i);
  rig.pager->wait_idle();
  rig.store->fails = [](const BlockStore::Transfer& t) { return t.writes; };
  for (int round = 0; round < 2; ++round)
    for (unsigned i = 0; i < 4; ++i) {
      EXPECT_EQ(rig.value(i), 10 + i + (round == 0 ? 0 : 40));
      rig.fill(i, 50 + i);
    }
  rig.pager->wait_idle();
  EXPECT_TRUE(rig.pager->counts().abandoned);
  ASSERT_EQ(rig.store->warnings.size(), 1u);
  EXPECT_NE(rig.store->warnings[0].find("stays in memory"), std::string::npos);
  for (unsigned i = 0; i < 4; ++i) EXPECT_EQ(rig.value(i), 50 + i);
}

TEST(Pager, WhatCannotBeReadBackIsAnErrorThatNamesIt) {
  PagerRig rig(3, 50000);
  rig.pager->open();
  rig.fill(1, 5);
  rig.pager->wait_idle();
  rig.store->fails = [](const BlockStore::Transfer& t) { return !t.writes && t.block == 1; };
  rig.pager->want(rig.blocks[1].get());  // nobody waits for that one
  rig.pager->wait_idle();
  try {
    rig.value(1);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_error);
    EXPECT_NE(std::string(error.what()).find("block 1"), std::string::npos) << error.what();
  }
  rig.store->fails = nullptr;
  EXPECT_EQ(rig.value(1), 5u) << "it may pass";
}

TEST(Pager, AStoreThatBreaksLeavesNothingUnderWay) {
  PagerRig rig(3, 50000);
  rig.pager->open();
  rig.store_all();
  rig.store->before = [] { throw Error(ExitCode::io_error, "the ring is gone"); };
  for (std::size_t i = 0; i < 3; ++i) rig.pager->want(rig.blocks[i].get());
  rig.pager->wait_idle();
  try {
    rig.value(2);
    ADD_FAILURE() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the ring is gone");
  }
}

TEST(Pager, ADiskThatHangsIsNotWaitedForForever) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = true;
  };
  const auto gate = std::make_shared<Gate>();
  const auto memory = page_memory(4096);
  const auto store = std::make_shared<MemoryStore>();
  const auto pager = std::make_shared<Pager>(store, Pager::Options{.most = 0, .timeout = 0.3});
  pager->add("the block", memory, 4096);
  pager->attach();
  store->before = [gate, memory] {  // which stays as long as the disk may still move it
    std::unique_lock lock(gate->mutex);
    gate->changed.wait(lock, [&] { return gate->open; });
  };
  pager->open();
  { const Pin pin(pager.get(), memory.get()); }
  pager->wait_idle();
  gate->open = false;
  const auto begin = std::chrono::steady_clock::now();
  try {
    pager->pin(memory.get(), Pager::Need::contents);
    ADD_FAILURE() << "it did not wait";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_error);
    EXPECT_NE(std::string(error.what()).find("the block: waited 0.3 s"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(pager->detach());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  const std::lock_guard lock(gate->mutex);
  gate->open = true;
  gate->changed.notify_all();
}

// What threads do to blocks at random: look whether each holds what the last one left, leave something new, want blocks
// ahead, claim them without what they held; the disk is slow and fails to read now and then.
TEST(Pager, TenThousandJobsSeeWhatTheLastOneLeft) {
  constexpr std::size_t count = 24, bytes = 3 * 4096 + 12, threads = 4, jobs = 10000;
  std::mt19937 disk(5);
  std::atomic<int> failures = 0;  // both outlive the pager, whose thread uses them to its end
  PagerRig rig(count, bytes, {}, 9 * whole_pages(bytes));
  rig.store->before = [&disk] {  // on the pager's thread alone
    if (disk() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(disk() % 300));
  };
  rig.store->fails = [&](const BlockStore::Transfer& t) { return !t.writes && disk() % 50 == 0 && ++failures; };
  rig.pager->open();
  struct Model {
    std::mutex mutex;  // one job on a block at a time, as the optimizers promise
    unsigned value = 0;
  };
  std::vector<Model> model(count);
  std::atomic<std::size_t> next = 0, retried = 0;
  const auto work = [&](unsigned seed) {
    std::mt19937 draw(seed);
    while (next++ < jobs) {
      const std::size_t i = draw() % count;
      const unsigned value = draw() % 256;
      rig.pager->want(rig.blocks[draw() % count].get());
      const std::lock_guard lock(model[i].mutex);
      const bool blind = draw() % 5 == 0;
      try {
        const bool reads = !blind && draw() % 3 == 0;
        const Pin pin(rig.pager.get(), rig.blocks[i].get(),
                      blind   ? Pager::Need::room
                      : reads ? Pager::Need::reading
                              : Pager::Need::contents);
        const std::byte* b = rig.blocks[i].get();
        if (!blind)
          for (const std::size_t at : {std::size_t{0}, std::size_t{4096}, bytes - 1})
            ASSERT_EQ(static_cast<unsigned>(b[at]), model[i].value) << "block " << i << " at " << at;
        if (draw() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw() % 100));
        if (reads) continue;
        std::memset(rig.blocks[i].get(), static_cast<int>(value), bytes);
        model[i].value = value;
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ExitCode::io_error) << error.what();
        ++retried;
      }
    }
  };
  std::vector<std::thread> pool;
  for (unsigned t = 0; t < threads; ++t) pool.emplace_back(work, 100 + t);
  for (std::thread& thread : pool) thread.join();
  rig.pager->wait_idle();  // its thread looks at what it may fail
  rig.store->fails = nullptr;
  rig.pager->wait_idle();
  EXPECT_LE(rig.pager->counts().in_memory, 9 * whole_pages(bytes));  // those that were wanted and not used
  EXPECT_LE(rig.pager->counts().largest, 9 * whole_pages(bytes));
  EXPECT_GT(rig.pager->counts().misses, jobs / 20);
  EXPECT_GT(failures, 20);
  EXPECT_GT(retried, 5u);
  EXPECT_FALSE(rig.pager->counts().abandoned);
  EXPECT_GT(rig.store->moved.bytes_same, jobs / 20 * bytes);
  EXPECT_EQ(rig.store->lost, 0);
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(rig.value(i), model[i].value) << i;
}

}  // namespace
}  // namespace sestina::reference
