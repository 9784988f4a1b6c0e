// The store of state on a fast disk: the same bytes by every way of transfer, through short, failing and damaged ones.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <random>
#include <utility>

#include "core/memory/pager.hpp"
#include "io/store/block_file.hpp"
#include "regression/unit/io/test_files.hpp"
#include "regression/unit/io/test_store.hpp"

namespace sestina {
namespace {

using Bytes = std::vector<std::byte>;
using Transfer = BlockStore::Transfer;
constexpr std::size_t chunk = BlockFile::chunk_bytes;
const std::vector<std::size_t> sizes = {1, 511, 4096, 4097, chunk, chunk + 1, 3 * chunk - 5, 700001};

Bytes noise(std::size_t n, unsigned seed) {
  std::mt19937 draw(seed);
  Bytes bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(draw());
  return bytes;
}

struct Rig {
  explicit Rig(BlockFile::Options options, bool aligned = false) : file(options) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      file.add("block " + std::to_string(i), sizes[i]);
      given.push_back(noise(sizes[i], static_cast<unsigned>(i)));
      got.emplace_back(sizes[i]);
      pages.push_back(aligned ? page_memory(sizes[i]) : nullptr);
    }
    file.open();
  }
  std::vector<Transfer> run(bool writes, std::vector<Bytes>& memory) {
    std::vector<Transfer> all;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (writes && pages[i]) std::copy(memory[i].begin(), memory[i].end(), pages[i].get());
      all.push_back({i, pages[i] ? pages[i].get() : memory[i].data(), writes, {}, ExitCode::done});
    }
    file.run(all);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      if (!writes && pages[i]) std::copy_n(pages[i].get(), sizes[i], memory[i].begin());
    return all;
  }
  void expect_round_trip() {
    for (const Transfer& t : run(true, given)) EXPECT_EQ(t.error, "");
    for (const Transfer& t : run(false, got)) EXPECT_EQ(t.error, "");
    EXPECT_TRUE(got == given);
  }

  BlockFile file;
  std::vector<Bytes> given, got;
  std::vector<std::shared_ptr<std::byte>> pages;  // aligned memory, which is moved where it lies
};

std::string bytes_by(const BlockFile::Options& options, bool aligned) {
  Rig rig(options, aligned);
  rig.expect_round_trip();
  return test::read_bytes(options.path);
}

TEST(BlockFile, EveryWayWritesTheSameBytes) {
  const test::TemporaryFolder folder;
  std::string first;
  for (const bool ring : {true, false})
    for (const bool direct : {true, false})
      for (const bool aligned : {true, false})
        for (const int depth : {1, 3, 64}) {
          const std::string bytes =
              bytes_by({.path = folder / "deep/blocks", .queue_depth = depth, .direct = direct, .ring = ring}, aligned);
          if (first.empty()) first = bytes;
          EXPECT_GT(bytes.size(), 700001u);
          EXPECT_TRUE(bytes == first) << ring << direct << aligned << depth;
        }
  EXPECT_FALSE(std::filesystem::exists(folder / "deep/blocks")) << "a scratch file goes with its owner";
}

TEST(BlockFile, PlacesAreAlignedAndWhatIsUnchangedIsNotWritten) {
  const test::TemporaryFolder folder;
  Rig rig({.path = folder / "blocks"});
  for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(rig.file.offset(i) % block_alignment, 0u);
  rig.expect_round_trip();
  const std::uint64_t once = rig.file.traffic().bytes_written;
  rig.given[6][2 * chunk] ^= std::byte{1};  // one of its three chunks
  rig.expect_round_trip();
  EXPECT_EQ(rig.file.traffic().bytes_written - once, chunk);  // with its tail
  EXPECT_GT(rig.file.traffic().bytes_same, 700001u);
  EXPECT_EQ(rig.file.version(6), 2u);
}

TEST(BlockFile, WhatIsKnownToBeTheSameIsNotLookedAt) {
  const test::TemporaryFolder folder;
  Rig rig({.path = folder / "blocks"});
  rig.expect_round_trip();
  const BlockStore::Traffic before = rig.file.traffic();
  std::vector<Transfer> transfers(2);
  for (std::size_t i = 0; i < 2; ++i) {
    transfers[i].block = 5 + i;
    transfers[i].memory = nullptr;  // whoever read from it would end the test
    transfers[i].writes = transfers[i].same = true;
  }
  rig.file.run(transfers);
  for (const Transfer& transfer : transfers) EXPECT_TRUE(transfer.ok()) << transfer.error;
  EXPECT_EQ(rig.file.traffic().bytes_written, before.bytes_written);
  EXPECT_EQ(rig.file.traffic().bytes_same, before.bytes_same + sizes[5] + sizes[6]);
  EXPECT_EQ(rig.file.version(5), 1u);
  rig.expect_round_trip();
}

// Also where another one has the block in memory meanwhile, to read it.
TEST(BlockFile, WhatAGuardWritesIsThereAfterTheBlockWasInTheFileAlone) {
  const test::TemporaryFolder folder;
  constexpr std::size_t n = 700001;
  const std::shared_ptr<std::byte> memory = page_memory(n);
  const auto file = std::make_shared<BlockFile>(BlockFile::Options{.path = folder / "blocks"});
  const auto pager = std::make_shared<Pager>(file, Pager::Options{});
  pager->add("block", memory, n);
  pager->need(pager->whole(n), 0);
  pager->attach();
  pager->open();
  StateField field{.path = "/optimizer/w/basis_left", .dtype = DType::u8, .shape = {n}, .row_end = n};
  field.data = memory.get();
  field.pager = pager.get();
  Bytes wanted = noise(n, 1);
  {
    const auto all = write_to(field, Pager::Need::room);
    std::copy(wanted.begin(), wanted.end(), all.view());
  }
  pager->wait_idle();
  EXPECT_EQ(pager->counts().in_memory, 0u);
  {
    const Pin reader(pager.get(), memory.get(), Pager::Need::reading);
    const auto some = write_to(field);
    some.view()[chunk + 3] ^= std::byte{1};
    wanted[chunk + 3] ^= std::byte{1};
  }
  pager->wait_idle();
  EXPECT_EQ(pager->counts().in_memory, 0u);
  {
    const Pin reader(pager.get(), memory.get(), Pager::Need::reading);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), memory.get()));
  }
  EXPECT_GT(file->traffic().bytes_read, 2 * n);
  EXPECT_TRUE(pager->detach());
}

// One that is to be read comes while others are written: it does not wait for them.
TEST(BlockFile, ReadsOvertakeWrites) {
  const test::TemporaryFolder folder;
  constexpr std::size_t writes = 8, bytes = 4 * chunk;
  for (const bool ring : {true, false}) {
    BlockFile file({.path = folder / "blocks", .queue_depth = 2, .ring = ring});
    for (std::size_t i = 0; i <= writes; ++i) file.add("block " + std::to_string(i), bytes);
    file.open();
    Bytes old = noise(bytes, 1), got(bytes);
    std::vector<Bytes> given;
    for (std::size_t i = 0; i < writes; ++i) given.push_back(noise(bytes, static_cast<unsigned>(2 + i)));
    std::vector<Transfer> first = {{writes, old.data(), true, {}, ExitCode::done}};
    file.run(first);
    struct Late final : BlockStore::Queue {
      Transfer* next(bool writing) override {
        if (writing) return out < all.size() ? &all[out++] : nullptr;
        return order.empty() || std::exchange(asked, true) ? nullptr : &read;
      }
      void ended(Transfer& transfer) override { order.push_back(transfer.block); }
      std::vector<Transfer> all;
      Transfer read;
      std::size_t out = 0;
      bool asked = false;
      std::vector<std::size_t> order;
    } queue;
    for (std::size_t i = 0; i < writes; ++i) queue.all.push_back({i, given[i].data(), true, {}, ExitCode::done});
    queue.read = {writes, got.data(), false, {}, ExitCode::done};
    file.serve(queue);
    ASSERT_EQ(queue.order.size(), writes + 1);
    const auto at = std::find(queue.order.begin(), queue.order.end(), writes) - queue.order.begin();
    EXPECT_GE(at, 1);
    EXPECT_LE(at, 4) << "of the writes those that had buffers";
    EXPECT_EQ(queue.read.error, "");
    EXPECT_TRUE(got == old);
  }
}

// Passes on less than asked, and fails now and then.
class Unsteady final : public ChunkEngine {
 public:
  Unsteady(std::unique_ptr<ChunkEngine> engine, std::function<int()> error)
      : engine_(std::move(engine)), error_(error) {}
  void submit(const Chunk& asked) override {
    Chunk less = asked;
    if (asked.bytes > block_alignment && ++count_ % 3 != 0) less.bytes = block_alignment * (1 + count_ % 2);
    engine_->submit(less);
  }
  bool take(Done& done, bool wait) override {
    if (!engine_->take(done, wait)) return false;
    if (const int error = error_()) done.moved = -error;
    return true;
  }
  std::string name() const override { return engine_->name(); }

 private:
  std::unique_ptr<ChunkEngine> engine_;
  std::function<int()> error_;
  std::size_t count_ = 0;
};

BlockFile::Options unsteady(const std::string& path, bool ring, std::function<int()> error) {
  return {.path = path, .queue_depth = 4, .ring = ring, .wrap = [error](std::unique_ptr<ChunkEngine> engine) {
            return std::make_unique<Unsteady>(std::move(engine), error);
          }};
}

TEST(BlockFile, ShortAndPassingFailuresAreMadeUpFor) {
  const test::TemporaryFolder folder;
  for (const auto [ring, aligned] : {std::pair(true, true), {true, false}, {false, true}, {false, false}}) {
    int calls = 0, broken = 0;  // as often as one chunk may be, whichever it is
    Rig rig(unsteady(folder / "blocks", ring,
                     [&calls, &broken] {
                       ++calls;
                       if (calls % 11 == 0 && broken < 3) return ++broken, EIO;
                       return calls % 7 == 0 ? EAGAIN : calls % 13 == 0 ? EINTR : 0;
                     }),
            aligned);
    rig.expect_round_trip();
    EXPECT_GT(calls, 50);
  }
}

TEST(BlockFile, FailingDiskNamesTheBlock) {
  const test::TemporaryFolder folder;
  int failing = 0;
  Rig rig(unsteady(folder / "blocks", true, [&failing] { return failing; }));
  rig.expect_round_trip();
  failing = EIO;
  for (Bytes& bytes : rig.given) bytes[0] ^= std::byte{255};
  for (const Transfer& t : rig.run(true, rig.given)) {
    EXPECT_EQ(t.code, ExitCode::io_error);
    EXPECT_NE(t.error.find("block " + std::to_string(t.block)), std::string::npos) << t.error;
    EXPECT_NE(t.error.find("Input/output error"), std::string::npos) << t.error;
  }
  failing = 0;  // what it holds of them is unknown: all is written again
  rig.expect_round_trip();
}

TEST(BlockFile, DamageIsFound) {
  const test::TemporaryFolder folder;
  Rig rig({.path = folder / "blocks"});
  rig.expect_round_trip();
  const int file = ::open((folder / "blocks").c_str(), O_RDWR);
  const auto at = static_cast<off_t>(rig.file.offset(6) + chunk + 17);
  const std::byte wrong = rig.given[6][chunk + 17] ^ std::byte{4};
  ASSERT_EQ(::pwrite(file, &wrong, 1, at), 1);
  ::fsync(file);
  ::close(file);
  for (const Transfer& t : rig.run(false, rig.got)) {
    EXPECT_EQ(t.ok(), t.block != 6) << t.error;
    if (t.block != 6) continue;
    EXPECT_EQ(t.code, ExitCode::bad_data);
    EXPECT_NE(t.error.find("block 6): what was read is not what was written"), std::string::npos) << t.error;
    EXPECT_NE(t.error.find(folder / "blocks"), std::string::npos);
  }
}

TEST(BlockFile, RefusesWhatHasNoRoomAndWhatAnotherRunHas) {
  const test::TemporaryFolder folder;
  const BlockFile::Options options{.path = folder / "blocks"};
  struct statvfs disk {};
  ASSERT_EQ(::statvfs(folder.path().c_str(), &disk), 0);
  BlockFile large(options);
  large.add("everything", disk.f_bavail * disk.f_frsize + (std::size_t{1} << 30));
  test::expect_error(ExitCode::cannot_create, {"blocks", "MiB of state have no room", "MiB free"},
                     [&] { large.open(); });
  EXPECT_FALSE(std::filesystem::exists(options.path));
  Rig rig(options);
  BlockFile second(options);
  test::expect_error(ExitCode::cannot_create, {"another run"}, [&] { second.open(); });
  rig.expect_round_trip();
  BlockFile nowhere({.path = "/proc/none/blocks"});
  test::expect_error(ExitCode::cannot_create, {"/proc/none"}, [&] { nowhere.open(); });
}

// The limit counts for a process without CAP_IPC_LOCK alone; the user stays, because folders above may be his alone.
void lock_at_most(rlim_t bytes) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3]{};
  if (::syscall(SYS_capget, &header, capabilities) != 0) std::_Exit(77);
  capabilities[0].effective &= ~(1u << CAP_IPC_LOCK);
  const rlimit limit{bytes, bytes};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || ::syscall(SYS_capset, &header, capabilities) != 0) std::_Exit(77);
}

// In a process of its own, since none of this can be taken back: exits with 0 when all holds.
[[noreturn]] void alone(const std::string& path, const std::string& notice, const std::string& way,
                        const std::function<void()>& prepare) {
  prepare();
  std::string text;
  bool good = false;
  text = test::said([&] {
    Rig rig({.path = path, .queue_depth = 8});
    rig.expect_round_trip();
    good = rig.file.describe().find(way) != std::string::npos;
  });
  good = good && text.find(notice) != std::string::npos && test::lines(text) == 1 && !::testing::Test::HasFailure();
  if (!good) std::fprintf(stderr, "said: %s\n", text.c_str());
  std::_Exit(good ? 0 : 1);
}

class BlockFileDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!chunk_ring_compiled()) GTEST_SKIP() << "no io_uring in this build";
    const test::TemporaryFolder folder;
    Rig rig({.path = folder / "blocks"});
    if (rig.file.describe().find("io_uring") == std::string::npos) GTEST_SKIP() << "no io_uring on this machine";
  }
  test::TemporaryFolder folder_;
};

TEST_F(BlockFileDeathTest, ThreadsWhereIoUringIsForbidden) {
  for (const int error : {EPERM, ENOSYS})
    EXPECT_EXIT(alone(folder_ / "blocks", "io_uring is not to be had here", "8 threads",
                      [&] { test::forbid(__NR_io_uring_setup, error); }),
                ::testing::ExitedWithCode(0), "")
        << error;
}

TEST_F(BlockFileDeathTest, UnregisteredWhereTooLittleMayBeLocked) {
  if (::geteuid() != 0) GTEST_SKIP() << "root alone may be above the limit";
  EXPECT_EXIT(alone(folder_ / "blocks", "are not registered with io_uring: 64 KiB", "(O_DIRECT)",
                    [] { lock_at_most(64 << 10); }),
              ::testing::ExitedWithCode(0), "");
}

TEST_F(BlockFileDeathTest, PageCacheWhereTheFileSystemHasNoDirectTransfers) {
  EXPECT_EXIT(
      alone(folder_ / "blocks", "no O_DIRECT", "(page cache)", [] { test::forbid(__NR_openat, EINVAL, 2, O_DIRECT); }),
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sestina
