// State of a device between its memory, host memory and a store below: what kernels read and write late is what they
// wrote before, memory is mapped for as long as it is used, budgets hold, and what fails says so.
#include "core/memory/device_store.hpp"

#include <gtest/gtest.h>

#include <random>

#include "regression/unit/core/device_rig.hpp"
#include "regression/unit/core/paging_rig.hpp"

namespace sestina::reference {
namespace {

constexpr std::size_t block_bytes = device_page / 2 + 100;  // one piece of memory each

// Blocks "host 0", "file 1", "host 2" ...: every second one lies in host memory, or all, or none; or all in unified
// memory, or each in another place than the one before.
struct DeviceRig {
  enum class Where { host, file, both, unified, all };
  using Place = DeviceStore::Place;
  // Returns the number of block i's place among host, file and unified.
  static std::size_t number_of_place(Where where, std::size_t i) {
    if (where == Where::both) return i % 2;
    if (where == Where::all) return i % 3;
    return where == Where::host ? 0 : where == Where::file ? 1 : 2;
  }
  explicit DeviceRig(std::size_t count, Where where, std::size_t most = 0, std::size_t host_bytes = 0) {
    const auto place = [](std::string_view name) {
      return name.starts_with("host") ? Place::host : name.starts_with("file") ? Place::below : Place::unified;
    };
    store = std::make_shared<DeviceStore>(
        device, where == Where::host || where == Where::unified ? nullptr : below,
        DeviceStore::Options{place, host_bytes, [this](const std::string& text) { warnings.push_back(text); }});
    pager = std::make_shared<Pager>(store, Pager::Options{.most = most, .key = "device_bytes"}, device);
    for (std::size_t i = 0; i < count; ++i) {
      const char* const names[] = {"host ", "file ", "unified "};
      const std::size_t name = number_of_place(where, i);
      blocks.push_back(ToyDevice::addresses(block_bytes));
      if (name == 2) device->unified.insert(blocks.back().get());
      pager->add(names[name] + std::to_string(i), blocks.back(), block_bytes);
    }
    values.resize(count);
    pager->need(3 * device_page, 0);
    pager->attach();
  }
  ~DeviceRig() { pager->detach(); }

  // An update of one block: a kernel looks at what is there and writes something else, after this has returned.
  void update(std::size_t i) {
    std::byte* const at = blocks[i].get();
    const Pin pin(pager.get(), at);
    device->compute.add([this, at, before = values[i], after = values[i] + 1] {
      for (std::size_t k = 0; k < block_bytes; k += 1 << 10) wrong += at[k] != std::byte(before) ? 1 : 0;
      std::memset(at, after, block_bytes);
    });
    ++values[i];
  }
  // A kernel that looks at what is there, after this has returned.
  void look(std::size_t i) {
    std::byte* const at = blocks[i].get();
    const Pin pin(pager.get(), at, Pager::Need::reading);
    device->compute.add([this, at, value = values[i]] {
      for (std::size_t k = 0; k < block_bytes; k += 1 << 10) wrong += at[k] != std::byte(value) ? 1 : 0;
    });
  }

  std::shared_ptr<ToyDevice> device = std::make_shared<ToyDevice>();
  std::shared_ptr<MemoryStore> below = std::make_shared<MemoryStore>();
  std::shared_ptr<DeviceStore> store;
  std::vector<std::shared_ptr<std::byte>> blocks;
  std::vector<unsigned char> values;  // of all bytes, once kernels have run
  std::atomic<int> wrong{0};
  std::vector<std::string> warnings;
  std::shared_ptr<Pager> pager;
};
using Where = DeviceRig::Where;

TEST(DeviceStore, KernelsFindWhatTheyWroteHoweverLateTheyRun) {
  for (const Where where : {Where::host, Where::file, Where::both, Where::unified, Where::all}) {
    constexpr std::size_t count = 9;
    DeviceRig rig(count, where);
    rig.pager->open();
    for (int round = 0; round < 12; ++round)
      for (std::size_t i = 0; i < count; ++i) {
        rig.update(i);
        rig.pager->want_in_turn(rig.blocks[i].get());
      }
    rig.device->compute.wait(rig.device->compute.added());
    rig.pager->wait_idle();
    EXPECT_EQ(rig.wrong, 0) << "a kernel did not find what the one before it wrote";
    EXPECT_LE(rig.device->largest, 3 * device_page) << "more is mapped than updates need";
    EXPECT_EQ(rig.below->kept.empty(), where == Where::host || where == Where::unified);
    EXPECT_GT(rig.store->traffic().bytes_read, 8 * count * block_bytes);
  }
}

// Its pages are asked for once a use, and go back: no copy is made, and no other memory of the host is taken.
TEST(DeviceStore, BlocksInUnifiedMemoryAreNotCopied) {
  constexpr std::size_t count = 9, rounds = 6;
  DeviceRig rig(count, Where::unified);
  rig.pager->record();
  rig.pager->open();
  for (std::size_t round = 0; round < rounds; ++round)
    for (std::size_t i = 0; i < count; ++i) {
      rig.update(i);
      rig.look(i);
      rig.pager->want_in_turn(rig.blocks[i].get());
    }
  rig.device->compute.wait(rig.device->compute.added());
  rig.pager->wait_idle();
  EXPECT_EQ(rig.wrong, 0);
  EXPECT_EQ(rig.device->copied, 0u);
  EXPECT_EQ(rig.device->pinned_bytes, 0u);
  EXPECT_LE(rig.device->largest, 3 * device_page) << "more is asked for than updates need";
  const std::size_t least = rounds * (count - 3);  // three have room to stay from a round to the next
  EXPECT_GE(rig.device->asked_in, least);
  EXPECT_LE(rig.device->asked_in, 2 * rounds * count)
      << "for the update, and for the look where it has gone between them";
  const std::size_t on_device = rig.device->mapped / device_page;
  EXPECT_EQ(rig.device->asked_back + on_device, rig.device->asked_in) << "what has come and not gone is there";
  EXPECT_EQ(rig.store->traffic().bytes_written, rig.device->asked_back * block_bytes);
  EXPECT_NE(rig.store->describe().find("unified memory: "), std::string::npos) << rig.store->describe();
  std::vector<Pager::Event> events;
  rig.pager->take_events(events);
  std::size_t moves = 0;
  for (const Pager::Event& event : events) {
    const bool read = event.kind == Pager::Event::Kind::read, written = event.kind == Pager::Event::Kind::write;
    if (!read && !written) continue;
    ++moves;
    EXPECT_STREQ(read ? event.from : event.to, "unified");
    EXPECT_EQ(event.bytes, block_bytes);
  }
  EXPECT_GT(moves, least);
}

TEST(DeviceStore, RandomUsesAgainstAModel) {
  std::mt19937 draw(11);
  DeviceRig rig(12, Where::all, 5 * device_page);
  rig.pager->open();
  for (int use = 0; use < 2000; ++use) {
    const std::size_t i = draw() % rig.blocks.size();
    if (draw() % 3 == 0) rig.pager->want(rig.blocks[draw() % rig.blocks.size()].get());
    if (draw() % 7 == 0) {  // overwritten, whatever it held
      std::byte* const at = rig.blocks[i].get();
      const Pin pin(rig.pager.get(), at, Pager::Need::room);
      rig.device->compute.add(
          [at, value = rig.values[i] = static_cast<unsigned char>(draw())] { std::memset(at, value, block_bytes); });
    } else if (draw() % 3 == 0) {
      rig.look(i);
    } else {
      rig.update(i);
    }
    if (draw() % 2 == 0) rig.pager->want_in_turn(rig.blocks[i].get());
  }
  rig.device->compute.wait(rig.device->compute.added());
  EXPECT_EQ(rig.wrong, 0);
  EXPECT_LE(rig.device->largest, 5 * device_page);
}

// Its memory goes after the kernels that read it, and nothing is copied.
TEST(DeviceStore, WhatIsOnlyReadIsNotCopiedOut) {
  for (const Where where : {Where::host, Where::file}) {
    constexpr std::size_t count = 9;
    DeviceRig rig(count, where);
    rig.pager->open();
    for (std::size_t i = 0; i < count; ++i) rig.update(i);
    rig.pager->wait_idle();
    const BlockStore::Traffic before = rig.store->traffic();
    for (int round = 0; round < 4; ++round)
      for (std::size_t i = 0; i < count; ++i) rig.look(i);
    rig.device->compute.wait(rig.device->compute.added());
    rig.pager->wait_idle();
    EXPECT_EQ(rig.wrong, 0);
    EXPECT_EQ(rig.store->traffic().bytes_written, before.bytes_written);
    EXPECT_GE(rig.store->traffic().bytes_read, before.bytes_read + 3 * count * block_bytes);
    EXPECT_GE(rig.store->traffic().bytes_same, 3 * count * block_bytes);
    EXPECT_LE(rig.device->largest, 3 * device_page);
  }
}

TEST(DeviceStore, BlocksBeginAsZerosWithoutMemory) {
  DeviceRig rig(6, Where::host);
  EXPECT_EQ(rig.device->mapped, 0u);
  rig.pager->open();
  rig.pager->wait_idle();
  EXPECT_EQ(rig.device->mapped, 0u);
  EXPECT_LE(rig.device->largest, 3 * device_page) << "they were not all mapped at once";
  const Pin pin(rig.pager.get(), rig.blocks[4].get());
  for (std::size_t k = 0; k < block_bytes; ++k) ASSERT_EQ(rig.blocks[4].get()[k], std::byte{0});
}

TEST(DeviceStore, BudgetsAreRefusedWithNumbers) {
  const auto message = [](std::size_t most, std::size_t host_bytes) -> std::string {
    DeviceRig rig(4, Where::both, most, host_bytes);
    try {
      rig.pager->open();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_deck);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(0, 0), "");
  const std::string device = message(1000, 0), least = std::to_string(3 * device_page);
  EXPECT_NE(device.find("device_bytes: 1000 bytes"), std::string::npos) << device;
  EXPECT_NE(device.find(least), std::string::npos) << device;
  // Two blocks, and the buffers on the way to the other two.
  const std::size_t host = (2 + DeviceStore::buffers) * block_bytes;
  EXPECT_EQ(message(0, host), "");
  const std::string few = message(0, host - 1);
  EXPECT_NE(few.find("optimizer.refresh.host_bytes: " + std::to_string(host - 1)), std::string::npos) << few;
  EXPECT_NE(few.find("at least " + std::to_string(host)), std::string::npos) << few;
}

TEST(DeviceStore, UnifiedMemoryCountsAsMemoryOfTheHost) {
  const auto opens = [](std::size_t host_bytes) {
    DeviceRig rig(4, Where::unified, 0, host_bytes);
    try {
      rig.pager->open();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_deck);
      return false;
    }
    return true;
  };
  EXPECT_TRUE(opens(4 * block_bytes));
  EXPECT_FALSE(opens(4 * block_bytes - 1));
}

TEST(DeviceStore, ADiskThatFailsIsLeftForTheMemoryOfTheDevice) {
  DeviceRig rig(5, Where::file);
  rig.pager->open();
  for (std::size_t i = 0; i < 5; ++i) rig.update(i);
  rig.pager->wait_idle();
  rig.below->fails = [](const BlockStore::Transfer& t) { return t.writes; };
  for (int round = 0; round < 3; ++round)
    for (std::size_t i = 0; i < 5; ++i) rig.update(i);
  rig.device->compute.wait(rig.device->compute.added());
  rig.pager->wait_idle();
  EXPECT_EQ(rig.wrong, 0);
  ASSERT_EQ(rig.warnings.size(), 1u);
  EXPECT_NE(rig.warnings[0].find("stays in memory"), std::string::npos);
  EXPECT_EQ(rig.device->mapped, 5 * device_page);
}

TEST(DeviceStore, WhatIsReadBackDamagedEndsTheRun) {
  DeviceRig rig(5, Where::file);
  rig.pager->open();
  for (std::size_t i = 0; i < 5; ++i) rig.update(i);
  rig.pager->wait_idle();
  rig.below->fails = [](const BlockStore::Transfer& t) { return !t.writes; };
  try {
    for (std::size_t i = 0; i < 5; ++i) rig.update(i);
    ADD_FAILURE() << "nothing was said";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("file "), std::string::npos) << error.what();
  }
}

TEST(DeviceStore, ADeviceWithoutMoreMemorySaysSo) {
  DeviceRig rig(5, Where::host);
  rig.pager->open();
  rig.pager->wait_idle();
  rig.device->most = 2 * device_page;
  const Pin first(rig.pager.get(), rig.blocks[0].get()), second(rig.pager.get(), rig.blocks[1].get());
  EXPECT_THROW(rig.pager->pin(rig.blocks[2].get(), Pager::Need::contents), Error);
  rig.device->most = 3 * device_page;
  const Pin third(rig.pager.get(), rig.blocks[2].get());  // and there is some again
}

}  // namespace
}  // namespace sestina::reference
